"""The parts of an evaluation: by weighted rewards, by the model, the claim, the checks, the tests."""
