"""Words that drills are made of: short, common, in lower case, none the beginning of another in its list."""

from __future__ import annotations

WORDS = (
    "apple", "basket", "bird", "boat", "book", "bottle", "bread", "bridge", "brush", "butter", "button", "candle",
    "carpet", "castle", "chair", "cheese", "cherry", "circle", "clock", "cloud", "coat", "coffee", "copper", "corner",
    "cotton", "cow", "cup", "desk", "dog", "door", "drum", "duck", "eagle", "engine", "farm", "feather", "fence",
    "field", "finger", "fire", "fish", "flag", "flower", "forest", "fork", "fox", "frog", "garden", "gate", "glass",
    "glove", "goat", "gold", "grape", "grass", "guitar", "hammer", "hat", "honey", "horse", "house", "island",
    "jacket", "juice", "kettle", "key", "king", "kitten", "knife", "ladder", "lake", "lamp", "leaf", "lemon",
    "letter", "lion", "lock", "market", "melon", "milk", "mirror", "monkey", "moon", "mouse", "needle", "nest",
    "ocean", "onion", "orange", "paint", "paper", "pencil", "piano", "pillow", "pilot", "planet", "plate", "pocket",
    "potato", "queen", "rabbit", "radio", "rain", "ring", "river", "road", "robot", "rocket", "roof", "rose", "salt",
    "scarf", "school", "sheep", "ship", "shirt", "silver", "snake", "snow", "soap", "spoon", "spring", "star",
    "stone", "storm", "street", "sugar", "summer", "table", "tiger", "tomato", "tower", "train", "tree", "turtle",
    "valley", "violin", "wagon", "wall", "water", "wheel", "window", "winter", "wolf", "wood", "yarn", "zebra",
)  # fmt: skip

NAMES = (
    "Adam", "Alice", "Anna", "Ben", "Carla", "Clara", "Daniel", "David", "Emma", "Eric", "Frank", "Grace", "Hanna",
    "Henry", "Ivan", "Jack", "Julia", "Karl", "Laura", "Leo", "Lucy", "Maria", "Mark", "Nora", "Oscar", "Paul",
    "Peter", "Rosa", "Sam", "Sara", "Simon", "Tom", "Victor", "Wendy",
)  # fmt: skip

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
