"""``python -m hieropo``: the command line."""

if __name__ == "__main__":
    from hieropo.cli import main

    main(prog_name="python -m hieropo")
