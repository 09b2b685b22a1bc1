"""What a training is made of: modules, optimizers, schedulers, loaders, generators, RNG, plain data.

The only room that knows torch and numpy.
"""
