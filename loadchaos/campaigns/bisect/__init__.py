"""Find the launch flags and the releases that a failure depends on. `flag_parts` splits and changes the flags of a
command; `flag_search` finds the needed ones and the remedies; `version_search` finds the first bad and the first good
release; `installs` lists and installs them. Candidates are decided as in campaigns/minimise. `flag_session` and
`version_session` run a search and write its results.
"""
