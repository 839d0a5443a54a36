"""Parts of an evaluation: values by the model, verdict, tests of the incumbent, randomisation tests."""
