"""Real processes and real kills: the promises, attacked from outside."""
