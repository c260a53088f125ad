"""Patterns for what a vision-language model says that is not in the picture.

Each rule is a pattern for one sentence. English is covered, with the usual openers in Chinese and Russian;
text in other languages passes unchanged. `boilerplate.py` applies them.
"""

from __future__ import annotations

import re


def _rule(text: str) -> re.Pattern[str]:
    """Compile a rule: its lines are one pattern, case does not matter, ' stands for either apostrophe.

    Spaces are single by the time a rule is tried; ~ is a space at the start of a line.
    """
    joined = "".join(line.strip("\n").lstrip() for line in text.split("\n"))
    return re.compile(joined.replace("'", "['’]").replace("~", " "), re.IGNORECASE)


THE = "(?:the|this|that|an?|your)"
NOT_INSIDE = (
    "(?! (?:(?:hung|hanging|mounted|printed|painted|framed|displayed|shown|seen|placed|pinned|taped|"
    "leaning|that|"
    "which|is|hangs) )*(?:on|above|over|behind|beside|near|at|by|next to|inside) "
    "(?:(?:the|an?|his|her|its|their) )?(?:[^ ,.:;!?]+ ){0,3}?(?:walls?|tv|television|screens?|monitors?|"
    "laptops?|phones?|tablets?|desks?|tables?|shelf|shelves|mantel|mantelpiece|fireplace|doors?|fridge|"
    "refrigerator|shirts?|t-shirts?|mugs?|cover|pages?|books?|cards?|box|boxes|easel|billboards?|sofa|couch|"
    "bed|banners?|signs?|packag[a-z]+|bottles?|cans?)\\b)"
)
"""Not behind `the picture`: `on the wall`, `hanging above a sofa`. That one is a thing in the picture."""
PLAIN = (
    "(?:(?:image|picture|photo|photograph|illustration|artwork|scene|snapshot|shot|visual|composition|"
    "depiction|graphic|digital artwork|digital illustration)\\b"
    f"{NOT_INSIDE})"
)
"""Media whose name says nothing about how the picture looks: left out, but not `the picture on the wall`."""
TELLING = (
    "(?:painting|drawing|sketch|rendering|render|portrait|cartoon|comic|meme|poster|collage|screenshot|"
    "watercolor|watercolour|diagram|logo|icon|mural|engraving|selfie|close-up)"
)
"""Media whose name a caption should keep: `The painting shows hills` becomes `a painting of hills`."""
GENERIC = (
    "(?:(?:given|provided|attached|uploaded|above|following|entire|whole|main|same|single|detailed|beautiful|"
    "stunning|striking|captivating|high-quality|high-resolution|high quality|high resolution|overall) )*"
)
ADVERBS = "(?:(?!only )(?:[a-z]+ly|also|just|further|itself) )*"
SHOWS = (
    "(?:shows?|showing|depicts?|depicting|features?|featuring|captures?|capturing|presents?|displays?|"
    "displaying|portrays?|portraying|showcases?|showcasing|illustrates?|contains?|containing|includes?|"
    "including|reveals?|represents?|highlights?|focus(?:es)? on|centers (?:on|around)|consists of|"
    "is (?:of|about)(?= )|is (?:composed|comprised|made up|full) of|"
    "is (?:[a-z]+ly )?(?:showing|depicting|featuring|displaying|capturing|dominated by)|"
    "is (?:[a-z]+ly )?(?:focused on|centered (?:on|around))|"
    "(?:appears?|seems?) to (?:be|show|depict|feature|capture|contain|include|portray|represent|display)|"
    "(?:provides?|offers?|gives?) (?:us )?an? (?:[a-z-]+ )?(?:view|glimpse|look) (?:of|into|at))"
)
THAT = (
    "(?: (?:us|you|the viewers?|viewers)(?: with)?(?= ))?"
    "(?: that(?= )| what (?:appears|seems|looks) to be(?= ))?"
)
ESSENCE = "(?:the (?:beauty|essence|charm|elegance|vibrancy|spirit|tranquility|serenity) of )?"
GIVEN = "(?: (?:here|above|below|provided)| (?:that )?you(?:'ve)? (?:provided|shared|uploaded|sent|posted))?"

VISIBLE = (
    "colou?rs?|colou?r (?:scheme|palette)|palette|design|layout|pattern|lighting|style|shape|background|look|"
    "appearance|outfit|structure|arrangement"
)
"""What `the overall …` may name that is seen; the overall mood, effect and impression are not."""

OPENERS = [
    _rule(r"^(?:assistant|user|ai|bot|janus|system|answer|response|question) ?: ?"),
    _rule(r"^describe (?:this|the) (?:image|picture|photo)(?: in (?:great )?detail)? ?[.:?,]? ?"),
    _rule(r"^(?:sure|certainly|of course|okay|ok|absolutely|great|yes)(?: thing)? ?[,.!:]+ ?"),
    _rule(
        r"""^here(?:'s| is| are) [^.:!?]{0,80}?\b(?:description|caption|summary|breakdown|details?|analysis|
        overview|interpretation)\b[^.:!?]{0,60}[:.] ?"""
    ),
    _rule(
        r"""^(?:(?:image|detailed|short|brief|visual|photo|main|key|scene) )*(?:description|caption|output|
        summary|overview|details?|alt text|subject|elements|features) ?: ?"""
    ),
    _rule(rf"^{THE} {PLAIN} can be described as(?: follows)? ?:? ?"),
    _rule(
        r"""^(?:based on|from|looking at|judging by) [^,.]{0,40}\b(?:image|picture|photo|photograph)\b
        [^,.]{0,20}, ?"""
    ),
    _rule(r"^it(?: appears| seems|(?: is|'s) (?:likely|clear|evident)) that "),
    _rule(
        r"^(?:additionally|furthermore|moreover|notably|interestingly|also|finally|however|in addition), ?"
    ),
    _rule(
        rf"""^(?:here )?(?:in|within|on|throughout|from) (?:the|this|that) {GENERIC}{PLAIN}{GIVEN}
        (?: ?[,:] ?| (?=(?:we|there|you|one|it|i)\b)| (?:is|are) (?=(?:an?|the|two|three|several|some)\b))"""
    ),
    _rule(
        r"""^(?:we|you|one|i|viewers?) (?:can |could |may )?(?:also |clearly |still )*(?:see|observe|
        notice|spot)
        ~(?:that )?"""
    ),
    _rule(
        r"^what (?:i|we|you) (?:can )?(?:also )?(?:see|tell you|say|describe|observe) (?:here )?(?:is|"
        r"are) (?:that )?"
    ),
    _rule(
        r"^我(?:可以|能够?)(?:为[您你]|帮[您你])?(?:看到|描述(?:一下)?(?:这[张幅](?:图片|照片|图像))?(?:的内容)?[：:，,])"
    ),
    _rule(rf"^it {ADVERBS}{SHOWS}{THAT} {ESSENCE}"),
    _rule(
        rf"""^{THE} {GENERIC}{PLAIN}{GIVEN}(?:, [^,.]{{1,60}},)? {ADVERBS}{SHOWS}{THAT}(?: the following)?
        (?: ?: ?| |$){ESSENCE}"""
    ),
    _rule(
        rf"^{THE} {GENERIC}{PLAIN}{GIVEN} {ADVERBS}(?:is|was|has)(?! (?:been|not|no|framed|hung)\b) {ADVERBS}"
    ),
    _rule(
        r"""^there(?: is| are|'s|'re| was| were| (?:seems?|appears?) to be)(?! (?:no|nothing|not)\b)
        ~(?:also |only |just |clearly )*"""
    ),
    _rule(
        r"""^(?:this|that|these|those|it)(?: is|'s| are|'re) (?:also )?
        (?=(?:an?|the|two|three|four|several|some|many) )"""
    ),
    _rule(
        rf"""^(?:an? |the )?{GENERIC}(?:image|picture|photo|photograph|snapshot)
        ~(?:of|showing|depicting|featuring|capturing|that shows) """
    ),
    _rule(
        r"""^(?:the|its|this) (?:overall )?(?:composition|layout|design) (?:of the (?:image|picture|flag|
        logo) )?
        (?:consists of|is (?:made up|composed|comprised) of|contains|includes) """
    ),
    _rule(
        r"""^(?:section|subject|main subject|clothing|attire|outfit|background|foreground|middle ground|
        midground|setting|objects?|
        location|appearance|scene|person|people|additional details|other details) ?: ?(?=\S)"""
    ),
    _rule(
        r"""^(?:lighting|colou?rs?|colou?r palette|pose|posture|expression|facial expression|style|
        composition|
        accessories|text|details|features|position|perspective|environment) ?: ?(?=\S+ \S+ \S)"""
    ),
    _rule(r"^what (?:appears|seems|looks) to be "),
    _rule(
        r"""^(?:在)?(?:这|這|该|此|本)?是?一?[张張幅个]?(?:图片|圖片|图像|照片|画面|畫面|图画|插图|图)(?:中|里|上)?，?
        (?:主要|清晰地|生动地)?(?:展示|显示|顯示|描绘|描繪|呈现|展现|展現|拍摄|描述|捕捉)(?:的是|出|到)?了?"""
    ),
    _rule(
        r"""^(?:在)?(?:这|這|该|此)?[张張幅]?(?:图片|圖片|图像|照片|画面|图)(?:中|里)，?
        (?:我们)?(?:可以看到|能看到|有|是)?"""
    ),
    _rule(
        r"""^на (?:этом |этой )?(?:изображении|фото|фотографии|картинке|снимке|рисунке)
        ~(?:мы видим|можно увидеть|видно|видн[аы]|(?:показан|изображ[её]н|представлен)[аоы]?) """
    ),
]
"""Beginnings to remove, tried again until none fits."""

RENAMED = _rule(
    rf"""^{THE} (?P<name>
    (?:(?!(?:in|on|of|at|from|to|with|the|an?|this|is|are|that|by|for) )[a-z][a-z-]* ){{0,4}}?
    (?:{TELLING}|(?<= ){PLAIN})) {ADVERBS}{SHOWS}{THAT} {ESSENCE}"""
)
"""`This black and white photograph depicts a man` becomes `a black and white photograph of a man`."""

IN_THE_IMAGE = _rule(
    rf"""~(?:of|in|within|throughout|from|across) (?:the|this) {GENERIC}
    (?:image|picture|photo|photograph|artwork|illustration){NOT_INSIDE}
    (?=[,.;:!?)]|$| (?:is|are|was|were|has|have|and|with|there|we|you|also|appears?|seems?|shows?|reads?|
    says?|states?|to|that|which|while|as|on|at|by|adds?|creates?)\b)"""
)

MOOD = (
    "(?:atmosphere|mood|ambiance|ambience|vibe|aura|aesthetic|impression|feeling|feel|sense|(?<!skin )tone)"
)
EFFECT = (
    f"(?:{MOOD}|emotions?|effect|contrast|focal point|depth|drama|nostalgia|warmth|mystery|elegance|charm|"
    "touch of (?:[a-z-]+ )?(?:colou?r|elegance|nature|greenery|whimsy|class|charm|warmth|drama|realism|"
    "luxury|beauty|"
    "vibrancy|style|sophistication|contrast|mystery|playfulness|modernity|life|brightness|nostalgia|"
    "femininity|rustic[a-z]*)|(?:pops?|splash(?:es)?|bursts?) of (?:[a-z-]+ )?colou?r|visual interest|"
    "dimension|dynamic)"
)
MOOD_ADJECTIVE = (
    "(?:peaceful|serene|calm|calming|tranquil|lively|cozy|cosy|inviting|warm|vibrant|dynamic|relaxed|"
    "relaxing|joyful|cheerful|festive|dramatic|mysterious|eerie|somber|playful|whimsical|romantic|nostalgic|"
    "energetic|bustling|welcoming|intimate|picturesque|harmonious|balanced|captivating|stunning|beautiful|"
    "striking|"
    "engaging|clear|sharp|crisp|blurry|grainy|well-lit|well lit|well-composed|detailed|professional|simple|"
    "pleasant|visually (?:appealing|striking|pleasing)|aesthetically pleasing|in focus|"
    "(?:of )?(?:high|good|low|excellent)[ -](?:quality|resolution))"
)
CREATES = (
    "(?:creates?|conveys?|evokes?|exudes?|adds?|gives?|brings?|enhances?|contributes?|emphasizes?|"
    "emphasises?|reflects?|sets?|radiates?|provides?|lends?|imparts?|infuses?|inspires?|"
    "(?:is|are) (?:creating|adding|giving))"
)
OVERALL = (
    "(?:overall|in (?:summary|conclusion|essence|general|short)|to (?:summarize|sum up|conclude)|all in all|"
    "altogether|generally speaking)"
)
ABSTRACT = (
    "lighting|light|lights|sunlight|colou?rs?|palette|scheme|textures?|composition|use|combination|contrast|"
    "interplay|arrangement|presence|style|design|background|backdrop|setting|environment|scene|image|picture|"
    "photo|photograph|illustration|artwork|details?|expressions?|pose|posture|stance|shadows?|tones?|hues?|"
    "perspective|angle|focus|depth|blur|juxtaposition|play|placement|positioning|position|elements?|"
    "attire|outfit|framing|choice|symmetry|gaze|smile|look|appearance|patterns?|quality|contrasts?|weather|"
    "gesture|body language|demeanor|condition|markings?|features?|architecture|view|scenery|sky|all|this|"
    "these|it|that|lines?|shapes?|effect"
)
"""Heads of a subject that say nothing by themselves: `the soft lighting creates …` leaves no picture."""

JUDGED = (
    "(?:nice|good|great|beautiful|lovely|pleasant|simple|stunning|captivating|interesting|wonderful|striking|"
    "charming|delightful|serene|peaceful|vibrant|lively|cozy|dynamic|memorable|powerful)"
)

APOLOGY = (
    "(?:(?:i'm |i am |we're |we are )?(?:so |very |truly )?(?:sorry|afraid|(?:un|not )able to)\\b|"
    "i (?:can't|cannot|can not|don't|do not|apologi[sz]e|am an|hope|won't|will not|am not|'m not)\\b|"
    "i'm not\\b|"
    "(?:my )?apologies\\b|as an? (?:ai|language|artificial)\\b|unfortunately, (?:i|it)\\b|"
    "(?:it is|it's|it isn't|it is not) (?:not )?(?:possible|impossible|unclear|not clear|difficult|hard)\\b|"
    "the identity of\\b|(?:the|this) (?:person|man|woman|individual)'s identity\\b)"
)
UNSEEN = (
    "(?:the|his|her|its|their) "
    "(?:(?!(?:whose|with|and|in|on|by|at|of|who|that|which|where|is|are|has|have)\\b)"
    "[^ ,.:;!?]+ ){1,5}(?:is|are) not "
    "(?:clearly |fully )?(?:visible|shown|seen|specified|known|discernible)\\b"
)
NEGATION = (
    "(?:(?:there (?:is|are|was|were|'s)|there's|it has|it contains) (?:also )?(?:no|not any|nothing|not)\\b|"
    f"(?:the|this) {PLAIN} (?:does not|doesn't|has no|contains no|lacks|is not|isn't)\\b|"
    "it (?:does not|doesn't|is not|isn't) (?:show|depict|contain|a)\\b|"
    "no (?:other )?(?:people|persons?|one|objects?|humans?|animals?|text|figures?|faces?)\\b|"
    f"{UNSEEN})"
)
GUESS = (
    "(?:(?:it|this|they|he|she)(?:(?: may| might| could)(?: also)? be|"
    "(?: is|'s| are) (?:also )?possibl[ey])\\b)"
)

UP_TO_THE_PICTURE = [
    _rule(rf"^{APOLOGY}[^.!?]*?[,;:]? (?:but|however|although|though|nevertheless|that said)\b,? ?(?=\S)"),
    _rule(
        rf"^{APOLOGY}[^.!?:]*?(?:: ?|[,;] (?=(?:the|this) {PLAIN} {SHOWS}|it {SHOWS}|here(?:'s| is)))(?=\S)"
    ),
    _rule(
        rf"""^{NEGATION}[^.!?;]*?(?:,? (?:but|except(?: for)?|other than|apart from|aside from|besides)|
        , only|
        , just|; however,|, however,) (?:(?:rather|instead|also|it (?:is|shows)|there (?:is|are)|shows|
        depicts|for) )*(?=\S)"""
    ),
    _rule(
        rf"^{GUESS}[^.!?;]*?,? (?:as|since|because|given that|but) (?=(?:he|she|it|they|the|there|his|her|"
        rf"its|their)\b)"
    ),
    _rule(
        rf"^{GUESS}[^.!?;]*?,? (?:based on|judging by|judging from|given) (?=(?:his|her|its|their|the|an?)\b)"
    ),
    _rule(
        rf"^(?:the|this) {PLAIN} is [^,.!?]{{0,60}}\b(?:quality|resolution|focus|clarity|well-lit|"
        rf"clear),? (?:and|with|but) (?:it )?{SHOWS}{THAT} "
    ),
    _rule(
        r"^(?:however, )?i can (?:[a-z]+ ){0,3}?(?:describe|tell|provide|offer|give|share|"
        r"say)\b[^.:!?]{0,90}: ?"
    ),
    _rule(
        r"^(?:however, )?i can (?:[a-z]+ ){0,3}?(?:describe|tell you|say|confirm|note)(?: that|(?= (?:he|"
        r"she|they|it|there)\b)) "
    ),
    _rule(
        r"^(?:however, )?i can (?:[a-z]+ )?describe the (?:person|man|woman|individual|image|scene|"
        r"subject) as "
    ),
    _rule(r"^(?:很?抱歉|对不起|不好意思|作为一个?(?:AI|人工智能))[^。！？]*?(?:但是|但|不过|然而)，?(?=.)"),
]
"""Removed in front of what is seen: `I'm sorry, I can't identify her, but `, `There is no one except `."""

CONTENT = (
    "(?:with (?!no |(?:its|the|their|an?) (?:[a-z-]+ ){0,3}?(?:mood|atmosphere|feel|feeling|vibe|charm|"
    "elegance|quality)\\b)|"
    "while (?!(?:the [a-z ]*)?(?:adding|creating|maintaining|evoking|conveying|giving|also))|"
    "as (?:he|she|it|they|the)\\b|but |"
    "(?:and )?(?:the|an?|his|her|their|its|two|three|several|some|there) [^,.!?]*?\\b(?:is|are|was|has|have|"
    "stands?|sits?|lies?|hangs?|walks?|runs?|holds?|wears?|standing|sitting|lying|walking|wearing|holding|"
    "hanging|"
    "running|visible|on|behind|beside|near|next to|under|above) |"
    "(?:and )?(?:wearing|holding|standing|sitting|carrying|surrounded by|dressed in|next to|behind|beside) )"
)
"""How a clause begins that holds something to see."""

NOTHING_SEEN = [
    _rule(r"^(?:overall )?(?:mood|atmosphere|ambiance|emotion|impression|tone|vibe|overall|conclusion) ?:"),
    _rule(
        rf"""^(?:the|its|an?|this) (?:(?!is |are |has )[a-z-]+ ){{0,3}}{MOOD}(?: (?:of|in|is|are|feels?|
        appears|seems|suggests?|conveys?|evokes?|creates?|adds?|gives?|reflects?|remains|and|here)\b|
        [.!]?$)"""
    ),
    _rule(
        rf"^(?:(?:it|this|that)(?: is|'s) |the {PLAIN} is )?(?:an? )?(?:very |"
        rf"quite )?{JUDGED}(?:,? (?:and )?{JUDGED})* (?:{PLAIN}|moment)[.!]?$"
    ),
    _rule(
        rf"""^(?:it|this|these|that|the {PLAIN}|the (?:use|combination|contrast|interplay|arrangement|
        presence)[^.!?]{{0,80}}?) {ADVERBS}(?:indicates?|invites?|speaks to|
        draws? (?:the |your |our |in the )?(?:viewer|eye|attention|focus|gaze)s?|
        captures? the (?:mood|viewer|intensity|emotions?|energy|excitement|feeling|moment|drama|thrill))\b"""
    ),
    _rule(
        rf"""^{THE} (?:[a-z-]+ )?(?:{PLAIN}|{TELLING}) {ADVERBS}(?:captures?|
        is a [a-z]+ representation of) the (?:beauty|essence|charm|
        spirit|serenity|tranquility) of (?:(?:human|everyday|rural|urban|city|old) )?(?:nature|life|wisdom|
        resilience|childhood|
        love|youth|summer|winter|autumn|spring|joy|friendship|simplicity|innocence|freedom|solitude|
        the moment|
        the season|the natural world)(?: and [a-z]+)?[.!]?$"""
    ),
    _rule(r"^the (?:humou?r|joke|irony)\b"),
    _rule(
        r"^(?:it|this|the [a-z]+) is (?:often|commonly|typically|frequently|usually|widely) used (?:to|as|"
        r"for|in)\b"
    ),
    _rule(
        r"""^(?:it|this)(?: is|'s) an? (?:humou?rous|funny|powerful|effective|creative|playful|
        beautiful) (?:way|reminder|
        take|commentary|representation|reflection|reference)\b"""
    ),
    _rule(rf"^{UNSEEN}"),
    _rule(
        rf"""^(?:the|this) (?:{PLAIN}|setting|environment|lighting and composition|(?:overall )?(?:style|
        design|
        look|colou?r scheme|layout)) {ADVERBS}
        (?:is|are|appears?|seems?|feels?|looks?)(?: to be)?(?: (?:very|quite|both|rather|well|slightly|so))*
        ~{MOOD_ADJECTIVE}(?:(?:,? and|,) (?:very )?{MOOD_ADJECTIVE})*(?:[.!]?$|, (?:and|with|as|but)\b)"""
    ),
    _rule(
        rf"""^(?:the|this) {PLAIN}(?:'s)? (?:is|has|was|appears)(?: to be)?
        ~(?:of |taken (?:in|with) |an? |in |very |generally )*
        (?:high|low|good|excellent|great|poor|sharp|crisp)[ -]
        (?:quality|resolution|definition|focus|clarity)"""
    ),
    _rule(
        rf"""^(?:the )?(?:{PLAIN} )?(?:quality|resolution|clarity|sharpness)(?: of [^.]{{0,40}})?
        ~(?:is|are|appears)"""
    ),
    _rule(r"^(?:the|this) (?:composition|arrangement|framing) (?:is|of|draws|emphasizes|focuses)"),
    _rule(r"^(?:there (?:is|are|'s)|there's|it has) (?:also )?(?:no|not any|nothing|not)\b"),
    _rule(r"^no (?:other )?[^.]{0,60}(?:is|are) (?:visible|present|shown|depicted|seen)"),
    _rule(rf"^(?:the|this) {PLAIN} (?:does not|doesn't|has no|contains no|lacks|is not|isn't)\b"),
    _rule(r"""^(?:it|this|they|he|she)(?: is|'s| are) (?:also )?(?:possible|unclear|not clear|hard to)\b"""),
    _rule(rf"^{APOLOGY}"),
    _rule(
        r"""^(?:i can (?!see|spot|observe|notice)|i(?:'d| would| will|'ll) be|however, i can (?!see|spot|
        observe|
        notice|describe|tell|provide|offer|give|share|say|still|only|confirm|note))"""
    ),
    _rule(
        r"""^(?:please (?:note|let me|feel free|consult|seek|keep in mind)|please (?:provide|upload|share|
        send)\b[^.!?]{0,40}?\b(?:images?|pictures?|
        photos?|details?|descriptions?|information|context)\b|let me know|feel free|
        if you (?:have|need|would|want|could|can|describe|'d)|is there anything|would you like|how can i|
        do you want|thank you (?:for|so)\b|thank you[.!]?$)"""
    ),
    _rule(
        r"""^(?:很?抱歉|对不起|作为一个?(?:AI|人工智能)|整体氛围|
        (?:整个)?(?:画面|场景|图片|照片|图像)(?:的)?(?:整体)?(?:氛围|给人)|
        这[张幅](?:图片|照片|图像|画)(?:给人|传达|营造))"""
    ),
    _rule(r"^(?:it|he|she|they|this|that|there|these|we|you|i)(?: is| are| was| has|'s|'re)?[.!,]?$"),
    _rule(r"^[^,.!?]{1,60} (?:suggests?|impl(?:y|ies)|indicates?)[.!]?$"),
]
"""Sentences without anything to see. Negations too ("There are no people"): CLIP would learn people."""

EFFECTS = [
    _rule(
        rf"""^(?P<subject>[^,.!?]*?) {CREATES} (?:(?:an?|the|to|its|their|his|her|more|both|some) )+
        (?:(?!to )[a-z-]+,? ){{0,6}}?{EFFECT}\b"""
    ),
    _rule(
        rf"^(?P<subject>(?:the|this|it|these|"
        rf"such)\b[^,.!?]*?) {CREATES} (?:(?!to )[a-z-]+ ){{0,6}}?{EFFECT}\b"
    ),
    _rule(r"^(?P<subject>[^,.!?]{1,90}?) (?:conveys?|evokes?|exudes?|symboli[sz]es?)\b"),
    _rule(
        rf"""^(?P<subject>[^,.!?]{{1,90}}?) (?:suggests?|implies|imply|hints? at)
        ~(?=(?:that|it|he|she|they|there|this)\b|(?:an? |the )?(?:[a-z-]+ ){{0,3}}?{EFFECT}\b)"""
    ),
    _rule(
        rf"""^(?P<subject>(?:the |his |her |its |their |this |these |
        both )?(?:[^ ,.:;!?]+ ){{0,4}}?(?:{ABSTRACT})\b[^,.!?]{{0,60}}?)
        ~(?:suggests?|implies|imply|hints? at)\b"""
    ),
    _rule(
        r"""^(?P<subject>(?:the|this) (?:use|contrast|composition|interplay|juxtaposition|framing|
        perspective|angle|focus)\b
        [^,.!?]*?) (?:emphasi[sz]es?|highlights?|enhances?|accentuates?|draws?|helps?)\b"""
    ),
]
"""What something is said to do to the viewer: its subject stays where it is a thing to see."""

SUMMARIES = [
    _rule(rf"^{OVERALL}(?:, ?| (?=the |this |it |there ))"),
    _rule(
        rf"^(?:the|its|this) overall (?!length|height|size|shape|(?:{VISIBLE})\b|composition (?:consists|"
        rf"contains|includes|is (?:made|composed)))"
    ),
    _rule(rf"^(?={GUESS}(?![^.!?]* (?:wearing|holding|carrying|dressed in|in an? [a-z]+ [a-z]+)\b))"),
    _rule(r"^(?:possibly|perhaps|maybe|it's possible|note:)\s?"),
    _rule(r"^(?:总的来说|总体来说|总之|整体(?:上|而言|氛围|画面|来看))[，,]?"),
]
"""Beginnings of a summary or a guess. It is left out; where nothing else is said, only its beginning is."""

MORE = "(?: (?:thus|thereby|further|possibly|likely|perhaps|subtly|effectively|beautifully|also))?"
TAIL = _rule(
    rf"""(?:,(?: and| which)*{MORE}| (?:that|which){MORE}(?= (?:suggest|evok|convey|impl|creat|
    enhanc|emphasi)))
    ~(?:suggest(?:s|ing)?|impl(?:y|ies|ying)|indicat(?:es|ing)|hint(?:s|ing) at|evok(?:es|ing)|
    convey(?:s|ing)|
    symboliz(?:es|ing)|exud(?:es|ing)|emphasi[sz](?:es|ing)|enhanc(?:es|ing)|contribut(?:es|ing) to|
    keep(?:s|ing) the (?:focus|attention|viewer)|help(?:s|ing) to (?:draw|create|emphasi[sz]e)|
    add(?:s|ing) (?:to (?:the|its|his|her|their)\b|depth|warmth|character|visual|texture|vibrancy|drama|charm|
    interest|an? (?:[a-z-]+ ){{0,2}}?(?:touch|hint|pop|splash|sense|element|layer|feel|feeling|contrast|
    dimension|burst|glow)\b)|draw(?:s|ing) (?:attention|the (?:eye|viewer|focus))|
    mak(?:es|ing) (?:it|the [a-z]+|him|her|them) (?:stand out|feel|appear|seem|look|the focal|a focal)|
    (?:creat(?:es|ing)|giv(?:es|ing)|provid(?:es|ing)|lend(?:s|ing)|set(?:s|ting)|highlight(?:s|ing)|
    bring(?:s|ing))
    ~[^.!?]*?\b(?:{EFFECT}|look|appearance|beauty|textures?)\b)(?:[^.!?。,]|,(?! {CONTENT}))*"""
)
"""`…, creating a warm atmosphere`: from the comma to the end of its sentence or to what is seen next."""

UNSURE = "(?:possibly|perhaps|maybe|presumably|potentially|probably|likely)"
TO_CLAUSE_END = "[^,.;]*(?:,(?= )|(?=[.;]|$))"
HEDGES = [
    (_rule(rf"^(the|its|this) overall (?=(?:{VISIBLE})\b)"), r"\1 "),
    (_rule(r"~or (?:possibly|perhaps|maybe|something similar)\b[^,.;]*"), ""),
    (_rule(rf", (?:and )?(?:which|who|that) (?:may|might|could)\b{TO_CLAUSE_END}"), ""),
    (_rule(rf"~(?!likely to ){UNSURE} (?:indicating|suggesting|for|to|because|due|as|from)\b[^,.;]*"), ""),
    (_rule(rf", (?:most )?{UNSURE} {TO_CLAUSE_END}"), ""),
    (
        _rule(
            r"\bwhat (?:(?:appears|seems|looks|is likely) to be|looks like|is (?:likely|possibly|probably)) "
        ),
        "",
    ),
    (_rule(r"^(it|this|he|she) (?:may|might|could) be\b"), r"\1 is"),
    (_rule(r"^(they|these) (?:may|might|could) be\b"), r"\1 are"),
    (_rule(rf"\b(is|are)((?: also)?) {UNSURE} to (?:be|have been)\b"), r"\1\2"),
    (_rule(r"\b(?:appears|seems) to be\b"), "is"),
    (_rule(r"\b(?:appear|seem) to be\b"), "are"),
    (_rule(r"\b(?:appearing|seeming) to be "), ""),
    (_rule(r"\b(?:appears|seems) to have\b"), "has"),
    (_rule(r"\b(?:appear|seem) to have\b"), "have"),
    (_rule(rf"\b(is|are|was|were) (?:most )?(?:{UNSURE}|seemingly|apparently) "), r"\1 "),
    (_rule(r"\b(?:possibly|presumably|seemingly|apparently|probably) "), ""),
    (_rule(r"\b(an?|the) (?:likely|perhaps) "), r"\1 "),
]
"""A guess stated as a fact is shorter; a guess between commas is left out."""
