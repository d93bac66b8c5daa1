"""Options: what every command takes, defined once for command line, files and Python."""
