"""What every command needs.

In here: options, settings, output, errors, exit codes, words of JSON Schema, what completes a name.
Not in here: a command.
"""
