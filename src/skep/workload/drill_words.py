"""Words that drills are made of: short, common, in lower case, none the beginning of another in its list."""

from __future__ import annotations

WORDS = (
    "acid", "acorn", "actor", "album", "alley", "amber", "anchor", "angel", "animal", "ankle", "apple", "army", "arrow",
    "artist", "atom", "autumn", "award", "baby", "bacon", "badge", "bagel", "baker", "balloon", "bamboo", "banana",
    "band", "banjo", "banker", "barn", "barrel", "basket", "beach", "beak", "bean", "beard", "beaver", "bell", "belt",
    "bench", "berry", "bike", "bird", "blanket", "blossom", "board", "boat", "bone", "book", "boot", "border", "bottle",
    "bowl", "branch", "bread", "brick", "bridge", "broom", "brush", "bubble", "bucket", "bulb", "bunny", "butter",
    "button", "cabbage", "cabin", "cable", "cactus", "cage", "cake", "calf", "camel", "camera", "canal", "candle",
    "candy", "canoe", "captain", "card", "carpet", "carrot", "cart", "castle", "cave", "cellar", "cereal", "chain",
    "chair", "chalk", "cheese", "cherry", "chest", "chimney", "church", "cinema", "circle", "city", "clay", "cliff",
    "clock", "cloud", "clover", "coach", "coat", "coconut", "coffee", "coin", "collar", "comb", "compass", "cookie",
    "copper", "coral", "cord", "corner", "cotton", "couch", "cousin", "cow", "crab", "cradle", "crayon", "cream",
    "crown", "cube", "cup", "curtain", "daisy", "dancer", "dawn", "deer", "dentist", "desk", "diamond", "dice",
    "dinner", "dish", "doctor", "dog", "doll", "dolphin", "donkey", "door", "dove", "dragon", "drawer", "dress", "drum",
    "duck", "dust", "eagle", "ear", "echo", "editor", "elbow", "elephant", "engine", "face", "farm", "father",
    "feather", "fence", "ferry", "field", "film", "finger", "fire", "fish", "flag", "flower", "flute", "fog", "foot",
    "forest", "fork", "fountain", "fox", "frame", "frog", "fruit", "funnel", "galaxy", "game", "garage", "garden",
    "garlic", "gate", "ghost", "giant", "gift", "ginger", "giraffe", "glass", "globe", "glove", "glue", "goat", "gold",
    "golf", "goose", "grape", "grass", "gravel", "guest", "guitar", "hall", "hammer", "hand", "harbor", "harp", "hat",
    "hawk", "helmet", "hero", "hill", "hive", "honey", "hook", "horn", "horse", "hotel", "house", "hunter", "insect",
    "iron", "island", "ivory", "jacket", "jaguar", "jail", "jeep", "jewel", "juice", "jungle", "kettle", "key", "king",
    "kitchen", "kite", "kitten", "knife", "lace", "ladder", "lake", "lamb", "lamp", "lantern", "laptop", "lawn", "leaf",
    "leather", "lemon", "letter", "lime", "lion", "lizard", "lobster", "lock", "lung", "magnet", "maid", "maple",
    "marble", "market", "mask", "meadow", "medal", "melon", "menu", "milk", "mint", "mirror", "mitten", "monkey",
    "moon", "moth", "motor", "mountain", "mouse", "mule", "muscle", "museum", "nail", "napkin", "needle", "nest",
    "nose", "nurse", "oak", "ocean", "onion", "orange", "oven", "owl", "oyster", "paint", "palace", "palm", "panda",
    "paper", "parade", "park", "parrot", "pasta", "path", "peach", "peanut", "pearl", "pebble", "pencil", "pepper",
    "piano", "picnic", "pigeon", "pillow", "pilot", "pipe", "pirate", "pizza", "planet", "plate", "plum", "pocket",
    "poem", "poet", "pole", "pond", "pony", "pool", "porch", "port", "potato", "prince", "pumpkin", "puppet", "puzzle",
    "queen", "quilt", "rabbit", "radio", "raft", "rail", "rain", "razor", "ribbon", "rice", "ring", "river", "road",
    "robin", "robot", "rocket", "roof", "rope", "rose", "ruler", "saddle", "sailor", "salad", "salmon", "salt", "sand",
    "saucer", "scarf", "school", "seat", "seed", "shark", "sheep", "shelf", "ship", "shirt", "shoe", "shop", "shovel",
    "shrimp", "silk", "silver", "singer", "sink", "sister", "skirt", "sled", "snail", "snake", "snow", "soap", "sofa",
    "song", "soup", "spider", "sponge", "spoon", "spring", "squirrel", "stamp", "star", "statue", "stone", "stool",
    "storm", "stove", "straw", "street", "sugar", "suit", "summer", "swan", "sweater", "sword", "table", "tail",
    "teacher", "team", "temple", "tent", "thumb", "ticket", "tiger", "toad", "toast", "tomato", "tongue", "tooth",
    "towel", "tower", "tractor", "train", "tree", "truck", "trumpet", "tube", "tulip", "tuna", "tunnel", "turtle",
    "twig", "uncle", "valley", "vase", "velvet", "vest", "village", "vine", "violin", "wagon", "wall", "walnut",
    "water", "wave", "whale", "wheel", "whistle", "wick", "window", "wing", "winter", "wire", "wizard", "wolf", "wood",
    "worm", "yard", "yarn", "zebra", "zipper",
)  # fmt: skip

NAMES = (
    "Adam", "Alice", "Amy", "Anna", "Arthur", "Bella", "Ben", "Bertha", "Bruno", "Carla", "Cecil", "Chloe", "Clara",
    "Colin", "Daniel", "David", "Diana", "Dora", "Edgar", "Edith", "Elsa", "Emma", "Eric", "Ethan", "Felix", "Fiona",
    "Frank", "George", "Gloria", "Grace", "Hanna", "Henry", "Hugo", "Ida", "Irene", "Ivan", "Jack", "Jane", "Jonas",
    "Julia", "Karl", "Kate", "Kevin", "Laura", "Leo", "Linda", "Lisa", "Louis", "Lucy", "Maria", "Mark", "Martha",
    "Max", "Megan", "Nathan", "Nina", "Noah", "Nora", "Olga", "Oliver", "Oscar", "Otto", "Paul", "Peter", "Philip",
    "Rachel", "Ralph", "Robert", "Rosa", "Ruth", "Sam", "Sara", "Simon", "Sophie", "Stella", "Tina", "Tom", "Ursula",
    "Vera", "Victor", "Walter", "Wendy", "Wilma", "Yvonne", "Zoe",
)  # fmt: skip

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
