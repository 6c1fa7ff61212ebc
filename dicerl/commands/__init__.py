"""The subcommands of ``dicerl``, a file each: its options, and what it prints."""
