"""What `redraft status` shows: gathered from serving, Redis and the registry within two seconds.

Nothing here imports torch, and MLflow's library only where its plain interfaces do not answer.
"""
