"""What holds for all tests: a busy machine doesn't make a property test fail."""

from hypothesis import settings

settings.register_profile("ottla", deadline=None)
settings.load_profile("ottla")
