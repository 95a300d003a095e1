"""The frontend: array handles, the coordinator behind them, and the names that a user imports."""
