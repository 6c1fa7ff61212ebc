"""Many runs compared: games × variants × seeds."""

FIXED = ("env.id", "preset", "variant", "seed", "run_dir")  # config fields the suite sets itself
