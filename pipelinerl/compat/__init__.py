"""Names and forms of upstream and of earlier layouts: import names, `populate_rl_data`."""
