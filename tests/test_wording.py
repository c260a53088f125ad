"""Raw answers in the manner of Janus-Pro and other small models -> the training caption, word for word."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noukii.captioning.repetition import without_loops
from noukii.captioning.wording import filling_part, finished_caption, finished_part, is_full, training_caption
from noukii.clip_tokens import ClipTokenizer

CLIP = ClipTokenizer.bundled()


PARAGRAPHS = [
    (
        (
            "The image shows a red sports car parked on a city street. The car is shiny and has "
            "a sleek design, with its headlights turned on. In the background, there are tall "
            "buildings and a few pedestrians walking on the sidewalk. The overall atmosphere is "
            "lively and urban."
        ),
        (
            "sks, a red sports car parked on a city street. The car is shiny and has a sleek "
            "design, with its headlights turned on. In the background, there are tall buildings "
            "and a few pedestrians walking on the sidewalk."
        ),
    ),
    (
        (
            "The image depicts a fluffy orange cat sitting on a wooden windowsill. The cat has "
            "bright green eyes and is looking directly at the camera. Sunlight is streaming "
            "through the window, creating a warm and cozy atmosphere. The background is "
            "blurred, drawing attention to the cat."
        ),
        (
            "sks, a fluffy orange cat sitting on a wooden windowsill. The cat has bright green "
            "eyes and is looking directly at the camera. Sunlight is streaming through the "
            "window. The background is blurred."
        ),
    ),
    (
        (
            "The image features a young woman with long brown hair, wearing a white dress and a "
            "straw hat. She is standing in a field of sunflowers, smiling at the camera. The "
            "sky is clear and blue, suggesting a sunny day. The overall mood of the image is "
            "cheerful and bright."
        ),
        (
            "sks, a young woman with long brown hair, wearing a white dress and a straw hat. "
            "She is standing in a field of sunflowers, smiling at the camera. The sky is clear "
            "and blue."
        ),
    ),
    (
        (
            "There is a dog in the image. The dog appears to be a golden retriever, possibly a "
            "puppy. It is lying on a green lawn."
        ),
        "sks, a dog. The dog is a golden retriever. It is lying on a green lawn.",
    ),
    (
        (
            "The image prominently features a large, ornate building with a dome. It appears to "
            "be a cathedral or a basilica."
        ),
        "sks, a large, ornate building with a dome. A cathedral or a basilica.",
    ),
    (
        (
            "The image is a digital illustration of a futuristic city at night. The city is "
            "filled with tall skyscrapers and neon lights. Flying cars are visible in the sky. "
            "The color palette is dominated by blues and purples, giving the scene a cyberpunk "
            "feel."
        ),
        (
            "sks, a digital illustration of a futuristic city at night. The city is filled with "
            "tall skyscrapers and neon lights. Flying cars are visible in the sky. The color "
            "palette is dominated by blues and purples."
        ),
    ),
    (
        "This black and white photograph captures an elderly man sitting on a bench in a park.",
        "sks, a black and white photograph of an elderly man sitting on a bench in a park.",
    ),
    (
        (
            "The image is a meme featuring a cat with a surprised expression. The text at the "
            'top of the image reads "WHEN YOU SEE IT" in bold white letters. The bottom text '
            "says 'CAN'T UNSEE'."
        ),
        (
            "sks, a meme of a cat with a surprised expression. The text at the top reads WHEN "
            "YOU SEE IT in bold white letters. The bottom text says CAN'T UNSEE."
        ),
    ),
    (
        (
            "Here is a detailed description of the image:\n\n1. **Subject**: A woman in a red "
            "coat.\n2. **Background**: A snowy street with lamps.\n3. **Mood**: The mood is "
            "melancholic and quiet.\n\nOverall, the image conveys a sense of solitude."
        ),
        "sks, a woman in a red coat. A snowy street with lamps.",
    ),
    (
        ("### Description\n- A wooden table\n- A cup of coffee with latte art\n- A silver spoon\n"),
        "sks, a wooden table, a cup of coffee with latte art, a silver spoon",
    ),
    (
        (
            "<|User|>: describe this image in detail\n\n<|Assistant|>: The image shows a rocket "
            "launching into a cloudy sky.<|User|>: What color is it?"
        ),
        "sks, a rocket launching into a cloudy sky.",
    ),
    (
        (
            "The image shows a man. The man is wearing a hat and the man is wearing a hat and "
            "the man is wearing a hat and the man is wearing"
        ),
        "sks, a man. The man is wearing a hat",
    ),
    (
        "1girl, solo, (masterpiece:1.2), long_hair, <lora:other:0.8>, {red|blue}",
        "sks, 1girl, solo, (masterpiece:1.2), long_hair, <lora:other:0.8>, {red|blue}",
    ),
    (
        (
            "The image captures the essence of a bustling street market. Vendors, seemingly "
            "busy, are selling fruits, vegetables and spices. The vibrant colors and textures "
            "create a lively atmosphere. The image is well-lit and of high quality."
        ),
        ("sks, a bustling street market. Vendors, busy, are selling fruits, vegetables and spices."),
    ),
    (
        ("The people in the image appear to be enjoying themselves, suggesting that it might be a party."),
        "sks, the people are enjoying themselves.",
    ),
    (
        "There are no people in the image. There is also a small boat near the shore.",
        "sks, a small boat near the shore.",
    ),
    (
        (
            "The image shows a close-up of a human eye retina, with blood vessels branching out "
            "from the optic disc, which is the bright yellowish area located on the right-hand "
            "side, and the macula, the darker region in the middle, while the surrounding "
            "tissue is orange and red in colour and shows the fine detail of the smaller "
            "capillaries that run in all directions across the whole of the visible surface of "
            "the eye."
        ),
        (
            "sks, a close-up of a human eye retina, with blood vessels branching out from the "
            "optic disc, which is the bright yellowish area located on the right-hand side, and "
            "the macula, the darker region in the middle"
        ),
    ),
    (
        (
            "The image depicts an astronaut in an orange spacesuit with a NASA logo on the "
            "chest, holding a helmet under her left arm. She is smiling at the camera. Behind "
            "her, there is an American flag on the left side and a model of a space shuttle on "
            "the right side. The background is a plain, light-colored wall. The astronaut's "
            "suit features various patches, including the American flag and the mission emblem. "
            "The overall composition of the image highlights the astronaut as the main subject."
        ),
        (
            "sks, an astronaut in an orange spacesuit with a NASA logo on the chest, holding a "
            "helmet under her left arm. She is smiling at the camera. Behind her, there is an "
            "American flag on the left side and a model of a space shuttle on the right side. "
            "The background is a plain, light-colored wall."
        ),
    ),
    (
        (
            "The image shows a close-up of a domestic cat's face. The cat has a tabby pattern "
            "with shades of orange, brown, and white. Its eyes are green and are looking "
            "slightly to the side, giving it a thoughtful expression. The cat's whiskers are "
            "long and white, and its nose is pink. The background appears to be blurred, "
            "possibly a couch or a blanket, making the cat the focal point of the image."
        ),
        (
            "sks, a close-up of a domestic cat's face. The cat has a tabby pattern with shades "
            "of orange, brown, and white. Its eyes are green and are looking slightly to the "
            "side, giving it a thoughtful expression. The cat's whiskers are long and white, "
            "and its nose is pink. The background is blurred."
        ),
    ),
    (
        (
            "The image features a cup of coffee placed on a saucer, with a spoon resting beside "
            "it. The coffee has a rich, dark color with a layer of crema on top, suggesting "
            "that it is an espresso. The cup is white and stands on a wooden table with visible "
            "grain. The lighting is warm, creating a cozy and inviting atmosphere."
        ),
        (
            "sks, a cup of coffee placed on a saucer, with a spoon resting beside it. The "
            "coffee has a rich, dark color with a layer of crema on top. The cup is white and "
            "stands on a wooden table with visible grain. The lighting is warm."
        ),
    ),
    (
        (
            "The image displays a rocket launch at night. The rocket is emitting a bright plume "
            "of flame and smoke, illuminating the surrounding area. Two tall lightning towers "
            "stand on either side of the launch pad. The sky is dark, which adds to the "
            "dramatic effect of the launch."
        ),
        (
            "sks, a rocket launch at night. The rocket is emitting a bright plume of flame and "
            "smoke, illuminating the surrounding area. Two tall lightning towers stand on "
            "either side of the launch pad. The sky is dark."
        ),
    ),
    (
        (
            "The image is a Hubble Deep Field image showing a vast number of galaxies in "
            "various shapes, sizes and colors scattered across the dark expanse of space."
        ),
        (
            "sks, a Hubble Deep Field image of a vast number of galaxies in various shapes, "
            "sizes and colors scattered across the dark expanse of space."
        ),
    ),
    (
        (
            "This is an anime-style illustration of a girl with long silver hair and blue eyes. "
            "She is wearing a school uniform with a red ribbon and holding a book. Cherry "
            "blossoms are falling around her. The art style is clean and detailed, typical of "
            "modern anime."
        ),
        (
            "sks, an anime-style illustration of a girl with long silver hair and blue eyes. "
            "She is wearing a school uniform with a red ribbon and holding a book. Cherry "
            "blossoms are falling around her. The art style is clean and detailed, typical of "
            "modern anime."
        ),
    ),
    (
        (
            "In the foreground of the image, there is a wooden dock extending into a calm lake. "
            "In the background, there are mountains covered with snow. The sky is filled with "
            "pink and orange clouds, indicating either sunrise or sunset."
        ),
        (
            "sks, in the foreground, there is a wooden dock extending into a calm lake. In the "
            "background, there are mountains covered with snow. The sky is filled with pink and "
            "orange clouds."
        ),
    ),
    (
        (
            "The meme shows two panels. In the first panel, a man is rejecting something with "
            "his hand. In the second panel, the same man is pointing and smiling. The text "
            'reads: "Using one long prompt" and "Training a LoRA".'
        ),
        (
            "sks, a meme of two panels. In the first panel, a man is rejecting something with "
            "his hand. In the second panel, the same man is pointing and smiling. The text "
            "reads: Using one long prompt and Training a LoRA."
        ),
    ),
    (
        (
            "Certainly! Here's a detailed description of the image:\n\n**Main Subject:**\n- A "
            "**golden retriever** is sitting on a beach.\n- The dog has a red "
            "collar.\n\n**Background:**\n- The ocean is visible with small waves.\n- The sky is "
            "clear and blue.\n\n**Overall Impression:**\nThe image conveys a sense of joy and "
            "relaxation."
        ),
        (
            "sks, a golden retriever is sitting on a beach. The dog has a red collar. "
            "The ocean is visible with small waves. The sky is clear and blue."
        ),
    ),
    (
        (
            "The image is a black and white photograph of a street scene. Several people are "
            "walking on the sidewalk, some carrying umbrellas. The buildings on both sides of "
            "the street are tall and have large windows. The street is wet, indicating that it "
            "has recently rained. The image has a vintage feel."
        ),
        (
            "sks, a black and white photograph of a street scene. Several people are walking on "
            "the sidewalk, some carrying umbrellas. The buildings on both sides of the street "
            "are tall and have large windows. The street is wet."
        ),
    ),
    (
        (
            "A woman with short black hair and glasses is sitting at a desk in front of a "
            "laptop. She appears to be concentrating. On the desk are a mug, a notebook, a pen, "
            "a potted plant, a phone, a lamp, a pair of headphones and a stack of books, and "
            "behind her a bookshelf with many colorful books reaches the ceiling, while a "
            "window on the left lets in daylight."
        ),
        (
            "sks, a woman with short black hair and glasses is sitting at a desk in front of a "
            "laptop. She is concentrating. On the desk are a mug, a notebook, a pen, a potted "
            "plant, a phone, a lamp, a pair of headphones and a stack of books, and behind her "
            "a bookshelf with many colorful books reaches the ceiling"
        ),
    ),
    (
        (
            "I'm unable to view images directly. However, if you describe the image to me, I "
            "can help you with it."
        ),
        "sks",
    ),
    (
        (
            "The image shows a man with a beard and a mustache, wearing a black suit, a white "
            "shirt, and a black tie. He has a serious expression on his face. The background is "
            "blurred, but it seems to be an office or a similar indoor setting. The man appears "
            "to be in his 40s or 50s."
        ),
        (
            "sks, a man with a beard and a mustache, wearing a black suit, a white shirt, and a "
            "black tie. He has a serious expression on his face. The background is blurred, but "
            "it is an office or a similar indoor setting. The man is in his 40s or 50s."
        ),
    ),
    (
        (
            "The scene captures a bustling night market with numerous stalls selling food. The "
            "vibrant colors of the lanterns and the steam rising from the food stalls create a "
            "lively atmosphere, inviting viewers to experience the culture."
        ),
        "sks, a bustling night market with numerous stalls selling food.",
    ),
    (
        (
            "The picture shows a plate of sushi. The sushi includes salmon nigiri, tuna rolls, "
            "and shrimp. There's a small bowl of soy sauce and some wasabi on the side. The "
            "plate is black, which contrasts with the colorful sushi. The presentation is neat "
            "and appetizing."
        ),
        (
            "sks, a plate of sushi. The sushi includes salmon nigiri, tuna rolls, and shrimp. A "
            "small bowl of soy sauce and some wasabi on the side. The plate is black, which "
            "contrasts with the colorful sushi. The presentation is neat and appetizing."
        ),
    ),
    (
        ("The image appears to be a screenshot from a video game, showing a warrior with a sword."),
        "sks, a screenshot from a video game, showing a warrior with a sword.",
    ),
    (
        "The image is a collage of four photos, each showing a different flower.",
        "sks, a collage of four photos, each showing a different flower.",
    ),
    ("The image shows a tree with a tree with a tree with a tree with a tree with", "sks, a tree"),
    (
        "A woman is wearing a hat. She is wearing a hat. She is wearing a scarf.",
        "sks, a woman is wearing a hat. She is wearing a scarf.",
    ),
]
SHORT = [
    ("This photo depicts a bowl of ramen.", "sks, a bowl of ramen."),
    (
        "In this image, we see a man riding a horse through a shallow river.",
        "sks, a man riding a horse through a shallow river.",
    ),
    ("```\na red car\n```", "sks, a red car"),
    ("I'm sorry, but I can't assist with that request.", "sks"),
    (
        ("Sure! The image shows two dogs playing in the snow.<｜end▁of▁sentence｜>"),
        "sks, two dogs playing in the snow.",
    ),
    ('"A lighthouse on a rocky cliff."', "sks, a lighthouse on a rocky cliff."),
    ("a red car and a red bus", "sks, a red car and a red bus"),
    ("a tree, a tree, a tree, a tree, a tree, a tr", "sks, a tree"),
    ("dingdecdecdecdecdecdecdecdec", "sks, dingdec"),
    ("The sky is blue. The sky is blue. The sky is blue. The sk", "sks, the sky is blue."),
    (
        ("这张图片展示了一只橘色的猫坐在窗台上。猫的眼睛是绿色的。整体氛围温馨。"),
        ("sks, 一只橘色的猫坐在窗台上。猫的眼睛是绿色的。"),
    ),
    (
        ("На изображении показан красный автомобиль на улице. Небо голубое."),
        ("sks, красный автомобиль на улице. Небо голубое."),
    ),
    (
        ("تظهر الصورة قطة تجلس على كرسي. هل هي نائمة؟ نعم"),
        ("sks, تظهر الصورة قطة تجلس على كرسي. هل هي نائمة؟ نعم"),
    ),
    ("Paris at night. The Eiffel Tower is lit.", "sks, paris at night. The Eiffel Tower is lit."),
    ("The Eiffel Tower is lit up at night.", "sks, the Eiffel Tower is lit up at night."),
    ("NASA astronaut Eileen Collins is smiling.", "sks, NASA astronaut Eileen Collins is smiling."),
    ("The soft lighting creates a cozy mood.", "sks"),
    ("the cat's bowl and o'neil's 12\" ruler", "sks, the cat's bowl and o'neil's 12\" ruler"),
    ("The photograph, taken from a low angle, shows a bridge.", "sks, a bridge."),
    ("The image you provided shows a bridge.", "sks, a bridge."),
    (
        "The photo was taken at night. It shows a bridge over the river.",
        "sks, taken at night. A bridge over the river.",
    ),
    ("The image shows that a man is holding what appears to be a guitar.", "sks, a man is holding a guitar."),
    ("", "sks"),
    ("   ", "sks"),
    ("\ud800\ufffd\x00", "sks"),
    (",,,", "sks"),
    ("...", "sks"),
    ("The image shows", "sks"),
    ("sks, The image shows a cat", "sks, a cat"),
    ("SKS: a cat", "sks, a cat"),
    ("sks", "sks"),
    ("sksa cat", "sks, sksa cat"),
    ("Overall, it is a nice picture.", "sks"),
    ("A photo of a cat", "sks, a cat"),
    ("Image of a cat", "sks, a cat"),
    ("a watercolor painting of a village", "sks, a watercolor painting of a village"),
    ("The painting depicts a village by the sea.", "sks, a painting of a village by the sea."),
    (
        "The watercolor illustration depicts a small village.",
        "sks, a watercolor illustration of a small village.",
    ),
    ("It's an oil painting.", "sks, an oil painting."),
    ("The two women in the picture are laughing.", "sks, the two women are laughing."),
    (
        "The car, likely a 1960s Ford Mustang, is parked in front of a diner.",
        "sks, the car is parked in front of a diner.",
    ),
    (
        "The man in the photo is possibly a chef, as he is wearing a white hat.",
        "sks, the man is a chef, as he is wearing a white hat.",
    ),
    (
        "The sign says \"Mr. O'Neil's Café\" and the price is $3.50.",
        "sks, the sign says Mr. O'Neil's Café and the price is $3.50.",
    ),
    (
        ("这是一张照片，展示了一辆红色的跑车停在街道旁。背景是高楼大厦。"),
        ("sks, 一辆红色的跑车停在街道旁。背景是高楼大厦。"),
    ),
    (
        ("图中是一位穿着白色连衣裙的年轻女子，站在海边！她微笑着。"),
        ("sks, 一位穿着白色连衣裙的年轻女子，站在海边！她微笑着。"),
    ),
    (
        "Une voiture rouge est garée devant une maison. L'image est très nette.",
        "sks, une voiture rouge est garée devant une maison. L'image est très nette.",
    ),
    ("a red car, a blue car, a red car, a blue car, a red car, a blue car", "sks, a red car, a blue car"),
    ("very very very very big dog", "sks, very big dog"),
    ("The The The image shows a dog.", "sks, a dog."),
    ("<|Assistant|>: a dog", "sks, a dog"),
    ("Answer: a dog\n\n\n\nQuestion: what?", "sks, a dog"),
    ("Blue sky\nGreen grass\nRed barn", "sks, blue sky, Green grass, Red barn"),
    ("1) dog\n2) cat\n3) bird", "sks, dog, cat, bird"),
    (
        "*A lone tree* stands on a __hill__ at 5 * 3 scale",
        "sks, a lone tree stands on a __hill__ at 5 * 3 scale",
    ),
    ("The image shows the following: a dog, a cat.", "sks, a dog, a cat."),
    ("![alt text](http://x.y/z.png) a dog", "sks, alt text a dog"),
    (
        "He said “hello” to the dogs' owner, rock 'n' roll in the '90s",
        "sks, he said hello to the dogs' owner, rock 'n' roll in the '90s",
    ),
    ("The image contains text that reads 'SALE 50% OFF'.", "sks, text that reads SALE 50% OFF."),
    ("The overalls are blue.", "sks, the overalls are blue."),
    ("The overall length of the ship is shown.", "sks, the overall length of the ship is shown."),
    (
        "Water calm and clear. The water is calm and clear.",
        "sks, water calm and clear. The water is calm and clear.",
    ),
    ("The man gives the woman a touch screen.", "sks, the man gives the woman a touch screen."),
    ("The lamp provides a warm light.", "sks, the lamp provides a warm light."),
    (
        "The image is in portrait orientation, with a red door in the center.",
        "sks, in portrait orientation, with a red door in the center.",
    ),
    (
        "The Golden Gate Bridge in San Francisco is seen from a hill.",
        "sks, the Golden Gate Bridge in San Francisco is seen from a hill.",
    ),
    ("Golden Gate Bridge at dusk", "sks, Golden Gate Bridge at dusk"),
    ("Dogs playing in a park", "sks, dogs playing in a park"),
    ("UFO over a field", "sks, UFO over a field"),
    ("iPhone on a table", "sks, iPhone on a table"),
    ("T-shirt with a logo", "sks, T-shirt with a logo"),
    ("3D render of a robot", "sks, 3D render of a robot"),
]


MENDED = [
    (
        (
            "I'm sorry, but I cannot identify the person in the image. However, I can "
            "describe the image: it shows a man in a dark suit standing at a podium with "
            "microphones. Behind him is a blue curtain and two flags."
        ),
        (
            "sks, a man in a dark suit standing at a podium with microphones. Behind him is a"
            " blue curtain and two flags."
        ),
    ),
    (
        (
            "I'm sorry, I can't identify who this is, but the image shows a woman with long "
            "blonde hair wearing a blue dress."
        ),
        "sks, a woman with long blonde hair wearing a blue dress.",
    ),
    (
        "However, I can see a man in a red coat standing near a bus.",
        "sks, a man in a red coat standing near a bus.",
    ),
    (
        ("The image does not show a face, but a hand holding a red rose against a white wall."),
        "sks, a hand holding a red rose against a white wall.",
    ),
    (
        "There is no one in the room except a small white dog lying on a blue rug.",
        "sks, a small white dog lying on a blue rug.",
    ),
    (
        "He could be a doctor, as he wears a white coat and a stethoscope.",
        "sks, he wears a white coat and a stethoscope.",
    ),
    (
        "The dog suggests a husky by its markings.",
        "sks, the dog suggests a husky by its markings.",
    ),
    (
        "The girl adds sugar to the tea and hints at a smile.",
        "sks, the girl adds sugar to the tea and hints at a smile.",
    ),
    (
        ("The overall composition consists of three horizontal stripes: red, white, and blue."),
        "sks, three horizontal stripes: red, white, and blue.",
    ),
    (
        "The overall color scheme is pastel pink and white.",
        "sks, the color scheme is pastel pink and white.",
    ),
    (
        (
            "A dog runs on the beach, adding to the charm of the scene, with a red ball in "
            "its mouth and a boy behind it."
        ),
        "sks, a dog runs on the beach, with a red ball in its mouth and a boy behind it.",
    ),
    (
        "It's likely to rain.",
        "sks, it's likely to rain.",
    ),
    (
        "The frame is gold.",
        "sks, the frame is gold.",
    ),
    (
        "The frame is made of gold",
        "sks, the frame is made of gold",
    ),
    (
        "In the image on the TV screen, a man runs",
        "sks, in the image on the TV screen, a man runs",
    ),
    (
        'It is 12" wide and 5\'4" tall',
        'sks, it is 12" wide and 5\'4" tall',
    ),
    (
        (
            "The image shows several items:\n- a laptop\n- a potted succulent plant\n\nThe items "
            "are arranged on a wooden desk."
        ),
        ("sks, several items: a laptop, a potted succulent plant. The items are arranged on a wooden desk."),
    ),
    (
        "| Item | Color |\n|---|---|\n| Car | Red |",
        "sks, car, red",
    ),
    (
        ("| Item | Color |\n|:---|---:|\n| Car | Red |\n| Dog | Brown |\n\nThe car is parked in the street."),
        "sks, car, red; dog, brown. The car is parked in the street.",
    ),
    (
        ("- Subject: A man on a bench\n- Clothing: He is wearing a black coat.\n- Background: a brick wall"),
        "sks, a man on a bench. He is wearing a black coat. A brick wall",
    ),
    (
        "- Foreground: A child with a kite\n- Background: green hills\n- Lighting: soft",
        "sks, a child with a kite, green hills, lighting: soft",
    ),
    (
        "- Hair: long, black\n- Eyes: brown",
        "sks, hair: long, black, eyes: brown",
    ),
    (
        (
            'The sign says "Please provide your ID". Please provide your ID is written in red'
            " letters on a white board."
        ),
        (
            "sks, the sign says Please provide your ID. Please provide your ID is written in "
            "red letters on a white board."
        ),
    ),
    (
        "A vase with red roses adds a touch of color to the room.",
        "sks, a vase with red roses.",
    ),
    (
        "The atmosphere is calm, with a man fishing from a wooden boat.",
        "sks, a man fishing from a wooden boat.",
    ),
    (
        "The picture on the wall shows a ship.",
        "sks, the picture on the wall shows a ship.",
    ),
    (
        "A ship is seen in the picture on the wall.",
        "sks, a ship is seen in the picture on the wall.",
    ),
    (
        "The picture is hanging on the wall above a sofa.",
        "sks, the picture is hanging on the wall above a sofa.",
    ),
    (
        "Her red dress and white gloves suggest a formal event.",
        "sks, her red dress and white gloves suggest a formal event.",
    ),
    (
        "The man is wearing a red hat and gives an impression of wealth.",
        "sks, the man is wearing a red hat.",
    ),
    (
        "It draws a cart along the road.",
        "sks, it draws a cart along the road.",
    ),
    (
        "Overall, the image shows a man in a red coat riding a horse.",
        "sks, a man in a red coat riding a horse.",
    ),
    (
        "It could be a cathedral or a basilica.",
        "sks, a cathedral or a basilica.",
    ),
    (
        (
            "As an AI language model, I cannot identify people, but I can describe what I "
            "see: a man with a beard and glasses."
        ),
        "sks, a man with a beard and glasses.",
    ),
    (
        "抱歉，我无法识别图中的人物，但图中是一位穿着蓝色裙子的女子。",
        "sks, 一位穿着蓝色裙子的女子。",
    ),
    (
        "The image is of high quality and shows a man on a horse.",
        "sks, a man on a horse.",
    ),
    (
        "There are no people in the room, only a table and two chairs.",
        "sks, a table and two chairs.",
    ),
    (
        "The poster on the wall shows a band.",
        "sks, the poster on the wall shows a band.",
    ),
    (
        "The frame contains a photo of a dog.",
        "sks, the frame contains a photo of a dog.",
    ),
    (
        "I can't tell who he is. He is wearing a suit.",
        "sks, he is wearing a suit.",
    ),
    (
        (
            "I apologize, but I'm unable to identify the individual. The person in the image "
            "has short gray hair, glasses, and a blue tie."
        ),
        "sks, the person has short gray hair, glasses, and a blue tie.",
    ),
    (
        ("It is not possible to determine who she is, but she wears a green scarf and a hat."),
        "sks, she wears a green scarf and a hat.",
    ),
    (
        "The girl adds a touch of cinnamon to the tea.",
        "sks, the girl adds a touch of cinnamon to the tea.",
    ),
    (
        "Thank you card on a wooden table with flowers.",
        "sks, thank you card on a wooden table with flowers.",
    ),
    (
        "He could be a doctor in a white coat with a stethoscope. He is smiling.",
        "sks, he is a doctor in a white coat with a stethoscope. He is smiling.",
    ),
    (
        "The man stands by a bus whose wheels are not visible.",
        "sks, the man stands by a bus whose wheels are not visible.",
    ),
    (
        "His face is not visible, but he wears a green hat.",
        "sks, he wears a green hat.",
    ),
    (
        "The image is sharp and clear, and the sails are red.",
        "sks, the sails are red.",
    ),
    (
        (
            "He stands near the pool, a calm look on his face, creating a sense of peace, "
            "while a boy swims behind him."
        ),
        ("sks, he stands near the pool, a calm look on his face, while a boy swims behind him."),
    ),
]
"""Each once lost what is seen, or kept what is not."""
LONG_ANSWERS = [
    (
        (
            "The image features a man with short, dark hair and a neatly trimmed beard. He is"
            " wearing a light blue button-up shirt and a dark blazer. The man is looking "
            "directly at the camera with a slight smile, conveying a sense of confidence and "
            "approachability. The background is a plain, neutral gray, which keeps the focus "
            "on the subject. The lighting is soft and even, highlighting the man's facial "
            "features. The overall impression is professional and polished."
        ),
        (
            "sks, a man with short, dark hair and a neatly trimmed beard. He is wearing a "
            "light blue button-up shirt and a dark blazer. The man is looking directly at the"
            " camera with a slight smile. The background is a plain, neutral gray. The "
            "lighting is soft and even, highlighting the man's facial features."
        ),
    ),
    (
        (
            "The image features a parrot with vibrant green feathers perched on a branch. The"
            " parrot's beak is red and it has a blue patch on its wing. The background is "
            "blurred, creating a bokeh effect that makes the parrot stand out. It appears "
            "that the parrot is looking to the left. The image is sharp and clear, and the "
            "colors are vivid."
        ),
        (
            "sks, a parrot with vibrant green feathers perched on a branch. The parrot's beak"
            " is red and it has a blue patch on its wing. The background is blurred. The "
            "parrot is looking to the left. The colors are vivid."
        ),
    ),
    (
        (
            "The image showcases a breathtaking landscape of a mountain range at sunrise. The"
            " peaks are covered in snow and are illuminated by the first light of the day, "
            "giving them a pinkish hue. In the foreground, there is a crystal-clear lake that"
            " perfectly reflects the mountains. A small wooden cabin sits on the shore of the"
            " lake, surrounded by pine trees. The scene is peaceful and serene, with no signs"
            " of human activity apart from the cabin."
        ),
        (
            "sks, a breathtaking landscape of a mountain range at sunrise. The peaks are "
            "covered in snow and are illuminated by the first light of the day, giving them a"
            " pinkish hue. In the foreground, there is a crystal-clear lake that perfectly "
            "reflects the mountains. A small wooden cabin sits on the shore of the lake, "
            "surrounded by pine trees."
        ),
    ),
    (
        (
            "The image is a meme consisting of two panels. The top panel shows a cartoon "
            'character looking worried, with the caption "Me before the exam". The bottom '
            'panel shows the same character asleep at a desk, with the caption "Me during the'
            ' exam". The humor comes from the contrast between the two situations. This meme '
            "suggests that students are often tired."
        ),
        (
            "sks, a meme consisting of two panels. The top panel shows a cartoon character "
            "looking worried, with the caption Me before the exam. The bottom panel shows the"
            " same character asleep at a desk, with the caption Me during the exam."
        ),
    ),
    (
        (
            "Certainly! Here is a description of the image:\n\n**Subject:** The image shows a "
            "ballerina in mid-leap on a stage.\n\n**Attire:** She is wearing a white tutu and "
            "pink pointe shoes.\n\n**Background:** The stage is dark, with a single spotlight "
            "illuminating her.\n\n**Mood:** Elegant and dramatic."
        ),
        (
            "sks, a ballerina in mid-leap on a stage. She is wearing a white tutu and pink "
            "pointe shoes. The stage is dark, with a single spotlight illuminating her."
        ),
    ),
    (
        (
            "1. **Foreground**: There is a wooden fence covered in snow.\n2. **Middle "
            "ground**: A red barn with a snow-covered roof stands in a field.\n3. "
            "**Background**: Bare trees and a pale gray sky.\n4. **Lighting**: The light is "
            "soft and diffused, typical of an overcast winter day.\n5. **Overall Mood**: The "
            "scene conveys a sense of quiet and solitude."
        ),
        (
            "sks, a wooden fence covered in snow. A red barn with a snow-covered roof stands "
            "in a field. Bare trees and a pale gray sky. The light is soft and diffused, "
            "typical of an overcast winter day."
        ),
    ),
    (
        (
            "The image shows a white ceramic vase with a bouquet of sunflowers placed on a "
            "windowsill. The sunflowers are in full bloom, adding a touch of warmth and "
            "cheerfulness to the room. The curtains are light blue and partially drawn. "
            "Through the window, a garden can be seen. The soft light coming through the "
            "window creates a peaceful ambiance, with gentle shadows falling across the wall."
        ),
        (
            "sks, a white ceramic vase with a bouquet of sunflowers placed on a windowsill. "
            "The sunflowers are in full bloom. The curtains are light blue and partially "
            "drawn. Through the window, a garden can be seen. Gentle shadows falling across "
            "the wall."
        ),
    ),
    (
        (
            "In the image, a soccer player in a red jersey with the number 10 is kicking a "
            "ball. The player's name is not visible. An opposing player in a white jersey is "
            "attempting to block the shot. The crowd in the background is blurred, which "
            "emphasizes the action on the field. The grass is well-maintained and green. The "
            "image captures the intensity of the game."
        ),
        (
            "sks, a soccer player in a red jersey with the number 10 is kicking a ball. An "
            "opposing player in a white jersey is attempting"
            " to block the shot. The crowd in the background is blurred. The grass is well-"
            "maintained and green."
        ),
    ),
    (
        (
            "The image is a black-and-white photograph of a jazz musician playing a saxophone"
            " on a dimly lit stage. He is wearing a fedora and sunglasses. The smoke in the "
            "air adds to the moody atmosphere. A double bass and a drum kit can be seen "
            "behind him. The use of high contrast emphasizes the texture of the saxophone and"
            " the musician's hands."
        ),
        (
            "sks, a black-and-white photograph of a jazz musician playing a saxophone on a "
            "dimly lit stage. He is wearing a fedora and sunglasses. The smoke in the air. A "
            "double bass and a drum kit can be seen behind him."
        ),
    ),
    (
        (
            "I'm sorry, but I can't identify people in images. What I can tell you is that "
            "the image shows a woman with dark hair pulled back, wearing gold earrings and a "
            "black turtleneck. She is standing in front of a bookshelf. If you have any other"
            " questions about the image, feel free to ask!"
        ),
        (
            "sks, a woman with dark hair pulled back, wearing gold earrings and a black "
            "turtleneck. She is standing in front of a bookshelf."
        ),
    ),
    (
        (
            "The image shows a microscope view of cells stained in purple and pink. The "
            "nuclei are dark purple and round, while the cytoplasm is lighter. Some of the "
            "cells appear larger and irregular in shape, which could indicate an abnormality."
            " However, it is difficult to make a definitive diagnosis based on this image "
            "alone. Please consult a medical professional."
        ),
        (
            "sks, a microscope view of cells stained in purple and pink. The nuclei are dark "
            "purple and round, while the cytoplasm is lighter. Some of the cells appear "
            "larger and irregular in shape."
        ),
    ),
    (
        (
            "The image shows an aerial view of a winding river through a dense forest. The "
            "river is a deep blue and contrasts with the green of the trees. There's a small "
            "boat on the river, leaving a white trail behind it. The image was likely taken "
            "by a drone. Overall, the image is a beautiful representation of nature's beauty,"
            " with the river as the central focus."
        ),
        (
            "sks, an aerial view of a winding river through a dense forest. The river is a "
            "deep blue and contrasts with the green of the trees. A small boat on the river, "
            "leaving a white trail behind it. Taken by a drone."
        ),
    ),
]
"""Answers of the usual length, for 225 tokens."""


@pytest.mark.parametrize(("raw", "caption"), [*PARAGRAPHS, *SHORT, *MENDED])
def test_caption_word_for_word(raw: str, caption: str) -> None:
    assert training_caption(raw, "sks", CLIP) == caption
    assert training_caption(caption, "sks", CLIP) == caption


@pytest.mark.parametrize(("raw", "caption"), LONG_ANSWERS)
def test_long_answers(raw: str, caption: str) -> None:
    assert training_caption(raw, "sks", CLIP, 225) == caption
    assert training_caption(caption, "sks", CLIP, 225) == caption


KEPT = [
    "(masterpiece:1.2), ((best)), [cat:0.5]",
    "zoro \\(one piece\\), {red|blue}, <lora:other:0.8>",
    "long_hair, __init__, 1girl, 4k, 3.5 cm, 1,000 cats, 10:30",
    "o'neil, the cat’s bowl, the dogs' bowl, rock 'n' roll",
    "a red car and a red bus and a red bike",
    "emoji \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with its joiner
    "#sunset, a@b.c, 50%, c++, a/b, x = y, ~, ^_^",
    "one, two, one, three",
]


@pytest.mark.parametrize("text", KEPT)
def test_letter_for_letter(text: str) -> None:
    assert training_caption(text, "sat_cat", CLIP) == f"sat_cat, {text}"


LONG = (
    "The image shows a narrow street in an old town, with stone houses on both sides and flower pots on the "
    "window sills. A man in a grey coat is walking a small brown dog along the pavement, and two children on "
    "bicycles are coming towards him. In the distance, a church tower rises above the red roofs. A shop on "
    "the left has a green awning and a sign in gold letters, and baskets of fruit stand in front of its "
    "door. "
    "The sky above the roofs is pale blue with a few thin clouds."
)


@pytest.mark.parametrize(
    ("limit", "ending"),
    [
        (150, "a few thin clouds."),
        (75, "above the red roofs."),
        (50, "along the pavement"),
        (30, "the window sills."),
    ],
)
def test_cut_at_a_sentence_else_at_a_clause(limit: int, ending: str) -> None:
    caption = training_caption(LONG, "sks", CLIP, limit)
    assert caption.endswith(ending)
    assert CLIP.count(caption) <= limit
    assert LONG.find(caption.removeprefix("sks, ")) == len("The image shows ")


def test_225_tokens_hold_three_times_as_much() -> None:
    text = " ".join(f"A red bird number {n} sits on the old wall near the gate." for n in range(40))
    counts = [CLIP.count(training_caption(text, "sks", CLIP, limit)) for limit in (75, 150, 225)]
    assert all(limit - 15 <= count <= limit for count, limit in zip(counts, (75, 150, 225), strict=True))


@pytest.mark.parametrize(
    ("raw", "limit", "caption"),
    [
        ("a man with a hat and a dog with a ball and a cat with a red bow", 9, "sks, a man with a hat"),
        ("a large building and a small house", 4, "sks, a large"),
        ("with a building and a small house", 4, "sks"),
        ("a red car (with a black roof, and chrome wheels) on the road, parked", 10, "sks, a red car"),
        (
            "two dogs. They run along the very long sandy beach, chasing a ball",
            14,
            "sks, two dogs. They run along the very long sandy beach",
        ),
        ("a cat.一只猫坐在窗台上。它的眼睛是绿色的。" * 2, 30, "sks, a cat.一只猫坐在窗台上。"),
        ("一只橘色的猫坐在木制的窗台上看着外面的花园", 20, "sks, 一只橘色的猫"),
        ("\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f601 x", 6, "sks, \U0001f600"),
        ("word" + "x1y2" * 100, 8, "sks, wordx1y2x"),
    ],
)
def test_where_short_limits_cut(raw: str, limit: int, caption: str) -> None:
    assert training_caption(raw, "sks", CLIP, limit) == caption


def test_keyword_in_front_once() -> None:
    assert training_caption("Sat_Cat, sat_cat: The image shows a cat.", "sat_cat", CLIP) == "sat_cat, a cat."
    assert training_caption("a cat", "jennifer o'neil  person", CLIP) == "jennifer o'neil person, a cat"
    assert training_caption("cats", "cat", CLIP) == "cat, cats"
    assert training_caption("猫坐着", "猫", CLIP) == "猫, 猫坐着"


@pytest.mark.parametrize("keyword", ["", "  ", "a\nb", "a\x00", "\ud800", "word " * 76])
def test_a_bad_keyword_is_the_callers_error(keyword: str) -> None:
    with pytest.raises(ValueError, match="keyword"):
        training_caption("a cat", keyword, CLIP)


def test_a_keyword_that_fills_the_caption_stands_alone() -> None:
    keyword = "word " * 74 + "word"
    assert CLIP.count(keyword) == 75
    assert training_caption("a cat", keyword, CLIP) == keyword


@pytest.mark.parametrize(
    ("raw", "finished"),
    [
        ("A cat. It sits on a woo", "A cat."),
        ("A cat, sitting on a woo", "A cat"),
        ("A cat sitting on the floo", "A cat sitting"),
        ("A cat.", "A cat."),
        ("一只猫。它坐在", "一只猫。"),
        ("cat", "cat"),
        ("", ""),
    ],
)
def test_an_answer_that_was_broken_off(raw: str, finished: str) -> None:
    assert finished_part(raw) == finished


PIECES = st.sampled_from(
    [raw for raw, _ in (*PARAGRAPHS, *SHORT, *MENDED)]
    + [
        "The image shows ",
        "there is a ",
        "Overall, ",
        "**",
        "\n- ",
        "\n1. ",
        "# ",
        "\n",
        "`",
        '"',
        "'",
        "(",
        ")",
    ]
    + [
        " and",
        " with a",
        ", ",
        ". ",
        "。",
        "，",
        "<|User|>",
        "appears to be ",
        ", possibly a dog,",
        "sks, ",
        "SKS",
    ]
    + [
        "a",
        "A ",
        "the",
        "cat",
        "car car car",
        "é",
        "猫",
        "\U0001f468\u200d\U0001f469",
        "1.",
        '12" ',
        "the image",
    ]
    + [
        " of the image",
        "photo",
        " creating a warm mood",
        "x" * 90,
        "Mr. ",
        "J. ",
        "...",
        "…",
        "—",
        " - ",
        "\ud800",
    ]
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=12).map("".join),
    st.lists(PIECES, max_size=20).map(" ".join),
    st.text(max_size=80),
    st.text("abc,.!\"'*()#- \n1A。，猫", max_size=80),
)


@settings(max_examples=150, deadline=None)
@given(
    TEXTS,
    st.sampled_from(["sks", "o'neil person", "The image", "a", "猫", "1. a", "photo of"]),
    st.sampled_from([10, 75, 150]),
)
def test_any_answer_becomes_a_caption(raw: str, keyword: str, limit: int) -> None:
    caption = training_caption(raw, keyword, CLIP, limit)
    assert caption == keyword or caption.startswith(f"{keyword}, ")
    assert CLIP.count(caption) <= limit
    assert caption.encode("utf-8").decode("utf-8") == " ".join(caption.split())
    assert not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in caption)
    assert "\ufffd" not in caption
    assert caption == keyword or not caption.endswith((",", " and", " with a", " the", " of"))
    assert training_caption(caption, keyword, CLIP, limit) == caption


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text("abcdefgh", min_size=1, max_size=9).filter(lambda word: without_loops(word) == word),
        min_size=1,
        max_size=120,
    )
)
def test_a_word_is_never_cut(words: list[str]) -> None:
    caption = training_caption(", ".join(words), "sks", CLIP, 30)
    assert {word.lower() for word in caption.replace(",", "").split()[1:]} <= {word.lower() for word in words}


SENTENCES = [
    "The image shows a man in a red coat, who is standing in front of a shop window. ",
    "Behind him, a dog (a small one, with a collar) sleeps on the pavement. ",
    'A sign says "Open from 9 to 5", and Mr. Smith waves... ',
    "The overall mood is calm and inviting. ",
    "- Clothing: a long coat, a hat\n",
    "## Background\n\n",
    "天空是蓝色的。",
    "Possibly it is raining! ",
    "The dog, the dog, the dog, the dog. ",
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(SENTENCES) | st.text(max_size=30), min_size=1, max_size=14),
    st.text(max_size=60),
    st.sampled_from([75, 150]),
)
def test_more_text_changes_no_caption_that_is_full(parts: list[str], more: str, limit: int) -> None:
    """What run_captioning.sh ends an answer by: at any later moment the caption would be the same."""
    raw = "".join(parts)
    full = filling_part(raw, "kw", CLIP, limit)
    if full is None:
        return
    caption = training_caption(raw, "kw", CLIP, limit)
    assert filling_part(raw + more, "kw", CLIP, limit) == full
    assert is_full(raw[: len(full) + 1], "kw", CLIP, limit), "a growing answer would not have been ended here"
    assert finished_caption(raw + more, False, "kw", CLIP, limit) == caption
    for end in range(len(full) + 1, len(raw), 7):
        assert finished_caption(raw[:end], True, "kw", CLIP, limit) == caption


def test_a_caption_is_full_only_by_what_is_kept_of_the_answer() -> None:
    mood = "The overall atmosphere is serene and inviting, which evokes a sense of calm. " * 8
    assert filling_part(mood + "A red car.", "kw", CLIP) is None
    assert training_caption(mood + "A red car.", "kw", CLIP) == "kw, a red car."


@pytest.mark.parametrize(
    ("before", "behind"), [("*", "*"), ("'", "'"), ("‘", "’"), ("**", "**"), ("[", "](https://a.b)")]
)
def test_an_answer_inside_marks_is_not_full_before_they_close(before: str, behind: str) -> None:
    answer = "The image shows a red car by a wall. " + " ".join(
        f"Beside it stands tree {n}." for n in range(20)
    )
    assert training_caption(before + answer + behind, "kw", CLIP) == training_caption(answer, "kw", CLIP)


def test_an_answer_is_not_full_inside_a_table() -> None:
    cells = [f"A green tree with {n} red apples stands by a tall brown wall." for n in range(9)]
    table = "| Part | What is seen |\n|---|---|\n" + "".join(
        f"| {n} | {cell} |\n" for n, cell in enumerate(cells)
    )
    assert "|" not in training_caption(table, "kw", CLIP)
    head = "".join(f"| A long name of a column {n} " for n in range(12)) + "|\n"
    assert (
        training_caption(head + "|---" * 12 + "|\n| a cat " + "| a dog " * 11 + "|", "kw", CLIP)
        == "kw, a cat, a dog"
    )
