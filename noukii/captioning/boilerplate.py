"""What a vision-language model says that is not in the picture: openers, moods, guesses, apologies.

Each rule is a pattern for one sentence. English is covered, with the usual openers in Chinese and Russian;
text in other languages passes unchanged.
"""

from __future__ import annotations

import re

from noukii.captioning.sentences import split_sentences


def _rule(text: str) -> re.Pattern[str]:
    """Compile a rule: its lines are one pattern, case does not matter, ' stands for either apostrophe.

    Spaces are single by the time a rule is tried.
    """
    joined = "".join(line.strip("\n").lstrip() for line in text.split("\n"))
    return re.compile(joined.replace("'", "['’]").replace("~", " "), re.IGNORECASE)


THE = "(?:the|this|that|an?|your)"
PLAIN = (
    "(?:image|picture|photo|photograph|illustration|artwork|scene|snapshot|shot|visual|frame|composition|"
    "depiction|graphic|digital artwork|digital illustration)"
)
"""Media whose name says nothing about how the picture looks: left out."""
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
    _rule(r"^it (?:appears|seems|is (?:likely|clear|evident)) that "),
    _rule(
        r"^(?:additionally|furthermore|moreover|notably|interestingly|also|finally|however|in addition), ?"
    ),
    _rule(
        rf"""^(?:here )?(?:in|within|on|throughout|from) (?:the|this|that) {GENERIC}{PLAIN}{GIVEN}
        (?: ?[,:] ?| (?=(?:we|there|you|one|it|i)\b))"""
    ),
    _rule(
        r"""^(?:we|you|one|i|viewers?) (?:can |could |may )?(?:also |clearly )*(?:see|observe|notice|spot)
        ~(?:that )?"""
    ),
    _rule(rf"^it {ADVERBS}{SHOWS}{THAT} {ESSENCE}"),
    _rule(
        rf"""^{THE} {GENERIC}{PLAIN}{GIVEN}(?:, [^,.]{{1,60}},)? {ADVERBS}{SHOWS}{THAT}(?: the following)?
        (?: ?: ?| |$){ESSENCE}"""
    ),
    _rule(rf"^{THE} {GENERIC}{PLAIN}{GIVEN} {ADVERBS}(?:is|was|has)(?! (?:been|not|no)\b) {ADVERBS}"),
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
    rf""" (?:of|in|within|throughout|from|across) (?:the|this) {GENERIC}
    (?:image|picture|photo|photograph|artwork|illustration)
    (?=[,.;:!?)]|$| (?:is|are|was|were|has|have|and|with|there|we|you|also|appears?|seems?|shows?|reads?|
    says?|states?|to|that|which|while|as|on|at|by|adds?|creates?)\b)"""
)

MOOD = (
    "(?:atmosphere|mood|ambiance|ambience|vibe|aura|aesthetic|impression|feeling|feel|sense|(?<!skin )tone)"
)
EFFECT = (
    f"(?:{MOOD}|emotions?|effect|contrast|focal point|depth|drama|nostalgia|warmth|mystery|elegance|charm|"
    "touch of|visual interest|dimension|dynamic)"
)
MOOD_ADJECTIVE = (
    "(?:peaceful|serene|calm|calming|tranquil|lively|cozy|cosy|inviting|warm|vibrant|dynamic|relaxed|"
    "relaxing|joyful|cheerful|festive|dramatic|mysterious|eerie|somber|playful|whimsical|romantic|nostalgic|"
    "energetic|bustling|welcoming|intimate|picturesque|harmonious|balanced|captivating|stunning|beautiful|striking|"
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
DROPPED = [
    _rule(rf"^{OVERALL}(?:,| the| this| it| there)"),
    _rule(r"^(?:the|its|this) overall (?!length|height|size|shape)"),
    _rule(r"^(?:overall )?(?:mood|atmosphere|ambiance|emotion|impression|tone|vibe|overall|conclusion) ?:"),
    _rule(
        rf"""^(?:the|its|an?|this) (?:(?!is |are |has )[a-z-]+ ){{0,3}}{MOOD}(?: (?:of|in|is|are|feels?|
        appears|seems|suggests?|conveys?|evokes?|creates?|adds?|gives?|reflects?|remains|and|here)\b|
        [.!]?$)"""
    ),
    _rule(
        rf"""^[^,.!?]* {CREATES} (?:(?:an?|the|to|its|their|his|her|more|both|some) )+
        (?:[a-z-]+,? ){{0,6}}?{EFFECT}\b"""
    ),
    _rule(rf"^(?:the|this|it|these|such)\b[^,.!?]* {CREATES} (?:[a-z-]+ ){{0,6}}?{EFFECT}\b"),
    _rule(r"^[^,.!?]{1,90} (?:suggests?|implies|imply|conveys?|evokes?|exudes?|hints? at|symbolizes?)\b"),
    _rule(
        rf"""^(?:it|this|these|that|the {PLAIN}|the (?:use|combination|contrast|interplay|arrangement|
        presence)[^.!?]{{0,80}}?) {ADVERBS}(?:indicates?|invites?|speaks to|draws?|
        captures? the (?:mood|viewer))\b"""
    ),
    _rule(
        rf"""^(?:the|this) (?:{PLAIN}|setting|environment|lighting and composition) {ADVERBS}
        (?:is|are|appears?|seems?|feels?|looks?)(?: to be)?(?: (?:very|quite|both|rather|well|slightly|so))*
        ~{MOOD_ADJECTIVE}(?:(?:,? and|,) (?:very )?{MOOD_ADJECTIVE})*[.!]?$"""
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
    _rule(r"^(?:there (?:is|are|'s)|there's|it has) (?:also )?(?:no|not any|nothing)\b"),
    _rule(r"^no (?:other )?[^.]{0,60}(?:is|are) (?:visible|present|shown|depicted|seen)"),
    _rule(rf"^the {PLAIN} (?:does not|doesn't|has no|contains no|lacks|is not|isn't)\b"),
    _rule(
        r"""^(?:it|this|they|he|she) (?:(?:may|might|could)(?: also)? be|
        (?:is|are) (?:also )?(?:possible|unclear|not clear|hard to))\b"""
    ),
    _rule(r"^(?:possibly|perhaps|maybe|it's possible)\b"),
    _rule(r"^(?:i'm |i am |we're |we are )?(?:so |very |truly )?(?:sorry|afraid|(?:un|not )able to)\b"),
    _rule(r"^i (?:can't|cannot|can not|don't|do not|apologize|am an|hope|won't|will not)\b"),
    _rule(r"^(?:my apologies|apologies|as an? (?:ai|language|artificial)|unfortunately, i|however, i can)\b"),
    _rule(
        r"""^(?:please (?:provide|upload|note|let|share|feel)|let me know|feel free|
        if you (?:have|need|would|want|could|can|describe|'d)|is there anything|would you like|how can i|
        do you want|note:|thank you)"""
    ),
    _rule(
        r"""^(?:抱歉|对不起|很抱歉|作为一个?(?:AI|人工智能)|总的来说|总体来说|总之|整体(?:上|而言|氛围|画面|来看)|
        (?:整个)?(?:画面|场景|图片|照片|图像)(?:的)?(?:整体)?(?:氛围|给人)|
        这[张幅](?:图片|照片|图像|画)(?:给人|传达|营造))"""
    ),
]
"""Sentences that are left out whole. Negations too ("There are no people"): CLIP would learn people."""

MORE = "(?: (?:thus|thereby|further|possibly|likely|perhaps|subtly|effectively|beautifully|also))?"
TAIL = _rule(
    rf"""(?:,(?: and| which)*{MORE}| (?:that|which){MORE}(?= (?:suggest|evok|convey|impl|creat|
    enhanc|emphasi)))
    ~(?:suggest(?:s|ing)?|impl(?:y|ies|ying)|indicat(?:es|ing)|hint(?:s|ing) at|evok(?:es|ing)|
    convey(?:s|ing)|
    symboliz(?:es|ing)|exud(?:es|ing)|emphasi[sz](?:es|ing)|enhanc(?:es|ing)|contribut(?:es|ing) to|
    add(?:s|ing) (?:to (?:the|its|his|her|their)\b|depth|warmth|character|visual|texture|vibrancy|drama|charm|
    interest|an? (?:[a-z-]+ ){{0,2}}?(?:touch|hint|pop|splash|sense|element|layer|feel|feeling|contrast|
    dimension|burst|glow)\b)|draw(?:s|ing) (?:attention|the (?:eye|viewer|focus))|
    mak(?:es|ing) (?:it|the [a-z]+|him|her|them) (?:stand out|feel|appear|seem|look|the focal|a focal)|
    (?:creat(?:es|ing)|giv(?:es|ing)|provid(?:es|ing)|lend(?:s|ing)|set(?:s|ting)|highlight(?:s|ing)|
    bring(?:s|ing)) [^.!?]*?\b(?:{EFFECT}|look|appearance|beauty|textures?)\b)[^.!?。]*"""
)
"""`…, creating a warm atmosphere`: from the comma to the end of its sentence."""

UNSURE = "(?:possibly|perhaps|maybe|presumably|potentially|probably|likely)"
TO_CLAUSE_END = "[^,.;]*(?:,(?= )|(?=[.;]|$))"
HEDGES = [
    (_rule(r" or (?:possibly|perhaps|maybe|something similar)\b[^,.;]*"), ""),
    (_rule(rf", (?:and )?(?:which|who|that) (?:may|might|could)\b{TO_CLAUSE_END}"), ""),
    (_rule(rf" {UNSURE} (?:indicating|suggesting|for|to|because|due|as|from)\b[^,.;]*"), ""),
    (_rule(rf", (?:most )?{UNSURE} {TO_CLAUSE_END}"), ""),
    (
        _rule(
            r"\bwhat (?:(?:appears|seems|looks|is likely) to be|looks like|is (?:likely|possibly|probably)) "
        ),
        "",
    ),
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


def without_boilerplate(text: str) -> str:
    """Return `text` (one line, single spaces) with only what describes the picture.

    Openers are removed from every sentence; moods, summaries, remarks on quality, negations and apologies
    are left out; hedges are made plain. A sentence that has lost its opener starts with a capital unless
    it is the first.
    """
    kept: list[str] = []
    for piece in split_sentences(text):
        sentence = _plain_sentence(piece.strip())
        if sentence:
            if kept and sentence[0] != piece.strip()[0]:
                sentence = sentence[0].upper() + sentence[1:]
            kept.append(sentence + (" " if piece[-1:].isspace() else ""))
    return "".join(kept).strip()


def _plain_sentence(sentence: str) -> str:
    before = None
    while sentence and sentence != before:
        before = sentence
        sentence = TAIL.sub("", sentence)
        if any(rule.search(sentence) for rule in DROPPED):
            return ""
        renamed = RENAMED.match(sentence)
        if renamed and not re.fullmatch(GENERIC + PLAIN, renamed["name"], re.IGNORECASE):
            name = renamed["name"]
            article = "an" if name[0].lower() in "aeiou" else "a"
            sentence = f"{article} {name} of {sentence[renamed.end() :]}"
        for rule in OPENERS:
            sentence = rule.sub("", sentence, count=1).lstrip(" ,;:")
        sentence = IN_THE_IMAGE.sub("", sentence)
        for rule, instead in HEDGES:
            sentence = rule.sub(instead, sentence)
    return sentence if any(char.isalnum() or char > "\u2000" for char in sentence) else ""
