"""The subcommands of ``dicerl``, one file each: options, and what it prints."""
