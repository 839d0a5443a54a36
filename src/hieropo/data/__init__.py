"""Two logs that ship with the package; where they come from stands in the README and the NOTICE here."""
