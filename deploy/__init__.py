"""The `interlock` command: workers that several programs share, and what this machine has to offer."""
