"""The crossed prior: effects of actions, levels of tasks and their interaction, and its exact posterior."""
