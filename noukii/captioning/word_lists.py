"""The words that prompt_cue knows: those without a meaning of their own, and irregular plurals."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTION_WORDS = _words(
    """
    a an the this that these those it its he him his she her hers they them their theirs we us our you
    your i me my who whom whose which what where when why how there here and or nor but so yet if than
    then as while because although though until unless since of in on at to from by for with without
    within into onto upon over under above below behind beside besides between among against along
    across around through throughout near off up down out about after before during beneath underneath
    inside outside toward towards per via like unlike amid amidst beyond past next is are was were be
    been being am do does did doing done have has had having can could may might must shall should will
    would not no none neither either both each every all any some several many much more most few fewer
    less least other others another such same own only just also too very quite rather really almost
    nearly even still already again ever never always often sometimes usually away back forth together
    apart else well s t d m ll re ve don isn aren wasn doesn didn hasn haven won wouldn can't don't
    isn't aren't it's there's that's one's himself herself itself themselves someone something anyone
    anything everyone everything nothing first second third one two three four five six seven eight nine
    ten dozen pair half lot lots bit kind kinds sort type types number numerous multiple various
    different certain
    """
)

FOREIGN_FUNCTION_WORDS = _words(
    """
    и в во на с со по из у о об к ко за от до для не что как это его её их он она они а но или же ли бы
    де de la le les des un une et à en du sur avec dans au aux est sont qui que se ce cette son sa der
    die das dem den und ein eine einer einem einen mit auf im ist sind von vor bei zu zum zur am el los
    las y con una por para es su sus del al het een van op met na em os as com uma um e il lo gli di da
    che è 위에 있는 있다 그리고
    """
)
"""Russian, French, German, Spanish, Dutch, Portuguese, Italian, Korean; enough to break phrases at them."""

CONNECTORS = _words(
    """
    wear wears wearing worn hold holds holding held feature features featuring featured show shows
    showing shown depict depicts depicting depicted display displays displaying displayed capture
    captures capturing captured present presents portray portrays portraying contain contains containing
    include includes including included appear appears appearing seem seems seeming look looks looking
    looked see seen visible make makes making made give gives giving given take takes taken taking get
    gets go goes going come comes coming put set sets placed place positioned located situated surround
    surrounded surrounding surrounds fill fills filled cover covered covering covers adorn adorned
    decorated use uses using used create creates creating created add adds adding added suggest suggests
    suggesting indicate indicates indicating convey conveys emphasize emphasizing highlight highlights
    highlighting reflect reflecting provide provides extend extends extending stand stands lie lies sit
    sits rests resting facing turned turn directed partially slightly fully directly clearly prominently
    mostly mainly primarily softly gently closely likely possibly perhaps probably seemingly overall
    typical typically designed characterized consist consists consisting comprise composed based known
    called dressed styled become becomes keep keeps kept let lets has having leave
    """
)
"""Verbs that join things and say nothing alone."""

BOILERPLATE = _words(
    """
    image images picture pictures photo photos photograph photographs pic pics illustration artwork
    scene scenes background foreground backdrop setting settings composition frame view subject subjects
    viewer atmosphere mood ambiance ambience vibe feel feeling sense impression overall detail details
    detailed description caption element elements aspect focus focal point emphasis effect appearance
    theme quality resolution highres masterpiece best side sides left right top bottom center centre
    middle front rear edge corner part parts portion area areas variety array range touch hint lora
    background's main key great good nice beautiful stunning striking elegant lovely interesting unique
    distinct prominent additional general entire whole full several hd uhd 4k 8k изображение изображении
    фото фотография фотографии картинка картинке фоне фон imagen foto fondo bild hintergrund
    arrière-plan immagine sfondo
    """
)
"""Talk about the picture itself."""

WEAK = _words(
    """
    bright dark soft warm cool hard thick thin young old modern traditional plain simple calm
    sharp smooth deep blurred blurry open closed single double upper lower inner outer distant close
    medium partly serious neutral natural lush vibrant vivid pale sleek shiny colored long short tall
    wide narrow low high large small big little rich clear new
    """
)
"""Say something before another word (dark hair) and nothing alone."""

WEAK_NOUNS = _words(
    """
    light thing things object objects item items color colors colour colours tone tones shade shades line
    lines shape shapes
    """
)
"""Say something behind another word (pastel colors) and nothing alone."""

ALONE = _words(
    """
    smiling standing sitting lying walking leaning seated parked running flying sleeping swimming
    playing riding posing
    """
)
"""What somebody does: a concept of its own, not part of a phrase (cat sitting)."""

NOT_PLURAL = _words(
    """
    glass grass dress moss cross boss bus gas lens chess canvas christmas tennis atlas iris cactus focus
    virus octopus citrus campus circus lotus hibiscus crocus fungus status paris texas always news
    series species mathematics gymnastics physics less loss class mass brass compass princess actress
    goddess fortress mattress wilderness darkness happiness business harness witness kiss bliss abyss
    """
)

_PAIRS = """
    men:man women:woman children:child feet:foot teeth:tooth mice:mouse geese:goose leaves:leaf
    knives:knife wolves:wolf shelves:shelf wives:wife loaves:loaf scarves:scarf hooves:hoof halves:half
    lives:life calves:calf thieves:thief elves:elf buses:bus lenses:lens cacti:cactus fungi:fungus
    snowmen:snowman firemen:fireman policemen:policeman movies:movie cookies:cookie shoes:shoe toes:toe
    canoes:canoe selfies:selfie hoodies:hoodie ties:tie pies:pie horseshoes:horseshoe snowshoes:snowshoe
    grey:gray colour:color colourful:colorful watercolour:watercolor
"""
IRREGULAR = dict(pair.split(":") for pair in _PAIRS.split())
"""Plural to singular, and British to American spelling."""

HAN_BREAKS = frozenset(
    "的了在是和与及着有被把将于从向到对为以之其这那此该某每各也都还又很更最不没无一二两三四五六七八九十几"
    "个只张幅辆位名条座件些种片株朵双群匹台里中上下前后左右旁边内外间处地得并且而但或如他她它们我你站坐躺"
    "停走穿戴拿看握抱放望靠趴挂骑吃喝玩照拍呈现展示显见"
)
"""Chinese particles, numerals, measure words, places and verbs of posture: they end a word."""

HAN_STOP = _words(
    """
    图片 图像 照片 画面 背景 前景 场景 画 图 图中
    画中 可以 看到 可见 整个 整体 氛围 充满 显得 似乎
    看起来 通过 以及 一些 非常 人物 风格 感觉 主题 细节
    写真 画像 背景色 样子 様子 色 面 子 写 真
    """
)
"""Chinese and Japanese talk about the picture, and syllables that are half a word."""
