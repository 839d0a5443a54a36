"""Rules of the doctor: each turns statistics of a log into findings, with the reason and the remedy."""
