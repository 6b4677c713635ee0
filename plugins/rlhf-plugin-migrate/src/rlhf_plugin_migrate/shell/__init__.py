"""Shell scripts as commands: quoting, variables and launchers. Nothing is run."""
