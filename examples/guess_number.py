"""An environment of several turns: the model guesses a number and is told whether the secret one is higher or lower. It is
played alone with

    tandem environment examples/guess_number.py:GuessTheNumber --row '{"secret": 7}' --say 5 --say 7
"""
import random
import re


class GuessTheNumber:
    def __init__(self, highest=100):
        self.highest = highest
        self.secret = 0

    def reset(self, seed, row):
        """The prompt of the data says what is to be done, so there is no first observation."""
        self.secret = row["secret"] if "secret" in row else random.Random(seed).randint(1, self.highest)

    def step(self, text):
        numbers = re.findall(r"-?\d+", text)
        if not numbers:
            return "Please guess a whole number.", 0, False
        guess = int(numbers[-1])
        if guess == self.secret:
            return None, 1, True
        return "higher" if guess < self.secret else "lower", 0, False
