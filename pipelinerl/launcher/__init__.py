"""Parts of the launcher: arguments, the run's folder, commands of the roles, choices, supervision."""
