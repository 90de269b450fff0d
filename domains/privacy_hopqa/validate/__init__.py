"""Checking a dataset: chain files, task trees and web corpus, one line for each thing that is wrong."""
