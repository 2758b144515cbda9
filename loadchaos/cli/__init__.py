"""Command line of loadchaos, one file per command or group of commands. Main type: the click group `main` in main.py.
To add a command, write it in a file here and add it to the list in main.py. Import what a command needs inside its
function: `loadchaos --help` imports every file here.
"""
