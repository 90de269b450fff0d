"""OpenAI's completion routes in front of the engine, with vLLM's additions that training programs use.

`fields` says what may be asked, `chat` makes a prompt of messages and finds tool calls, `answers` writes
bodies and chunks, `routes` ties them to HTTP.
"""
