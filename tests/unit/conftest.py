from hypothesis import settings

settings.register_profile("unit", deadline=None)  # a machine at work on other things is slow at times
settings.load_profile("unit")
