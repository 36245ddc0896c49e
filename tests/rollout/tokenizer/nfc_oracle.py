"""Prints seeded random texts and their NFC by Python's unicodedata, as JSON [[text, nfc], ...].

Only characters that this Python knows: later ones could normalise otherwise in a newer ICU.
"""
import json
import random
import sys
import unicodedata

NUM_TEXTS = 2000
# Hangul jamo, combining marks in any order, singletons, composition exclusions, compatibility forms.
INTERESTING = (
    "e\u0301 a\u0323\u0302 \u1112\u1161\u11ab \uac00\u11a8 \u212b \u2126 \u0340 \u0958 \u0f73 \ufb1d \U0001d15e "
    "\u1e0b\u0323 \u0344 \ufb01 \u2460 \u00c5 \u0041\u030a \u0592\u05b7\u05bc \u0b47\u0b3e".split(" ")
)


def random_character(rng):
    while True:
        top = rng.choice([0x80, 0x250, 0x370, 0x3100, 0xD7FF, 0x1FFFF])
        character = chr(rng.randrange(top))
        if unicodedata.category(character) not in ("Cn", "Cs"):
            return character


def random_text(rng):
    return "".join(
        rng.choice(INTERESTING) if rng.random() < 0.3 else random_character(rng)
        for _ in range(rng.randrange(20))
    )


rng = random.Random(int(sys.argv[1]))
texts = [random_text(rng) for _ in range(NUM_TEXTS)]
print(json.dumps([[text, unicodedata.normalize("NFC", text)] for text in texts]))
