"""Many runs compared: games × variants × seeds."""
