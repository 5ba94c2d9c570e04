"""Connect the rooms: hand the fold and delivery to the recorder, which knows neither."""


def connect() -> None:
    pass
