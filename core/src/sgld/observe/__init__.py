"""How one sees what sgld does: logs, metrics, request records, traces and profiles."""
