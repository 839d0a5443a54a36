"""The standard deviations of the crossed prior, integrated over; zero is a possible value of each."""
