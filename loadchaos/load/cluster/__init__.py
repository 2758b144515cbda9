"""Workers on other machines: joining, rows, commands and clocks. `messages.py` lists what they send each other."""
