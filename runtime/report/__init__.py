"""The report: one page of HTML about one run, several seeds, or several of them beside each other."""
