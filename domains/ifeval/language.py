"""Which language a text is written in: by its script, and by frequent words where several share one.

Called by the check of `language:response_language`. Beside the languages that IFEval asks for, it knows some
that would be taken for one of them.
"""

import re
import unicodedata
from collections import Counter

_SCRIPTS = {
    "BENGALI": "bn",
    "CJK": "zh",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "he",
    "HIRAGANA": "ja",
    "KANNADA": "kn",
    "KATAKANA": "ja",
    "MALAYALAM": "ml",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
}
"""Scripts that one of the languages has for itself."""
_WORDS = {
    "LATIN": {
        "de": "der die das und ist nicht ein eine ich sie es mit auf für den von zu im dem wir auch sich "
        "wie was wer geht hallo guten tag danke bitte vielen ihnen dir mir bin bist sind hat haben nur noch "
        "ja nein gerne",
        "en": "the of and to in is it that you for was on are with as this be have not they we a an i no he "
        "my your what how hello thank thanks very good please yes his her their has had will can all our",
        "es": "el la los las de que y en un una es por con para no se su más pero como lo al del está "
        "te mi tu ella él come hola gracias cómo qué muy muchas mucho buenos buenas días estás eres "
        "tiene cuando porque",
        "fi": "ja on ei se että hän oli ovat mutta myös kun joka tämä mukaan sekä olen minä sinä voi "
        "kiitos hyvää paljon päivää hei moi mitä miten olet olemme niin tai vain nyt tässä kanssa jos",
        "fr": "le la les de des et est un une il elle que qui dans pour pas sur avec ce nous vous je du "
        "au aux bonjour merci ça comment beaucoup votre notre mon ton ses très bien suis été sont mais ou",
        "it": "il lo la gli le di che e è un una per non con sono del della nel più come ma anche questo "
        "ciao grazie buongiorno molto tutti ho hai sei ti mi sul sulla dei delle alla nella suo sua si",
        "pl": "i w na z się nie to jest do że jak ale po co tak za od przez dla jego są był tylko "
        "dziękuję dzień dobry proszę bardzo jestem jesteś ma mam może czy kiedy gdzie ten ta te oraz który",
        "pt": "o a os as de que e é um uma em não para com se do da no na por mais como mas ao são "
        "bom dia obrigado obrigada muito você está eu meu sua seu pela pelo nos das dos foi tem quando olá",
        "sw": "na ya wa kwa ni katika za la kuwa hii huo watu sana pia hiyo lakini yake kama mtu "
        "asante habari jambo mimi wewe yeye sisi wao nini vipi ndiyo hapana kila siku wakati ili",
        "nl": "de het een en van is dat niet op met voor zijn ik je hij wij maar ook aan er naar hoe gaat "
        "hallo goedemorgen dag dank bent ben deze dit wat nog wel bij uit hebben heeft mijn jouw",
        "sv": "och att det är inte en ett jag som på med för han hon vi du men har av till den här där "
        "hej tack god hur mår mycket mig dig sig kan var från eller",
        "da": "og det er ikke en et jeg som på med for han hun vi du men har af til den her der "
        "hej tak god hvad hvordan meget mig dig sig kan var fra eller hedder",
        "ro": "și nu este sunt în la cu de pe un o să că ce care mai din pentru am ai mea meu "
        "salut bună mulțumesc ziua faci foarte dar sau acest această unde",
        "ca": "el la els les de i que és en un una per amb no però com al dels molt aquest aquesta meva meu "
        "hola gràcies bon dia tots tot jo tu són està què més tinc",
        "cs": "a je v na se to že není ale jak s z do jsem jsi jsou byl pro tak nebo už ten ta "
        "ahoj dobrý den děkuji kde co máš velmi můj moje být",
        "tr": "ve bir bu da de için ne çok ama ben sen var yok değil mi ile gibi daha o "
        "merhaba teşekkür ederim nasılsın güzel evet hayır benim senin",
        "id": "dan yang di ini itu dengan untuk tidak dari saya kamu ada ke akan tetapi juga adalah kami "
        "selamat pagi terima kasih apa kabar sangat punya bisa kita",
        "vi": "và là của có không một cho được trong với người các này khi đã những để tôi rất "
        "xin chào cảm ơn bạn nhiều khỏe như thế làm vì nên cũng đi đến ra lại anh chị em",
    },
    "CYRILLIC": {
        "bg": "и на за се да от е в не са че по със като това но който има при си ще той тя "
        "добър ден здравейте благодаря много как сте аз ние вие те тази този бъде съм или ако само",
        "ru": "и в не на что я с он как это по но они к у за из мы все она так его был было для "
        "привет спасибо здравствуйте большое очень дела мне меня тебя вас нас если только уже когда день",
        "uk": "і в не на що я з він як це та до але вони у за ми все вона так його був для є від "
        "привіт дякую дуже добрий день будь ласка мене тебе вас нас якщо тільки вже коли ще або цей",
    },
    "ARABIC": {
        "ar": "في من على أن إلى هذا التي ما لا هو عن مع كان هذه الذي و كل بعد ذلك هي "
        "مرحبا شكرا كيف حالك السلام عليكم أنا أنت نحن هل نعم جدا يوم قد ثم أو كما بين",
        "fa": "و در به از که این را با است برای آن یک خود تا بر هم می شود های اما "
        "سلام ممنون شما من تو ما چطور حال هست نیست بود شد خیلی روز یا اگر هر",
        "ur": "اور کے میں کی ہے کا سے کو پر یہ ہیں نے کہ ایک بھی ہو اس جو کر تھا نہیں "
        "آپ ہم تم شکریہ سلام کیسے کیا ہوں تھی گیا رہا دن بہت یا اگر",
    },
    "DEVANAGARI": {
        "hi": "है के में की और का से को पर यह हैं एक भी ने कि नहीं था हो इस जो कर "
        "आप कैसे मैं हम तुम धन्यवाद क्या हूँ बहुत गया रहा दिन या अगर तो लिए",
        "mr": "आहे आणि च्या हा ही हे या तो ते मध्ये एक नाही असे होते आहेत केले मी त्या पण "
        "नमस्कार तुम्ही कसे आहात धन्यवाद काय आम्ही खूप होती गेला दिवस किंवा जर तर साठी",
        "ne": "छ र को मा का हो यो एक पनि गर्न भने छन् लाई बाट गरेको थियो त यस उनी "
        "नमस्कार तपाईं तपाईंलाई कस्तो म हामी धन्यवाद के धेरै थिए गयो दिन वा यदि लागि",
    },
}
"""Frequent words, by script and language."""
_LISTED = {
    script: {code: words.split() for code, words in listed.items()} for script, listed in _WORDS.items()
}
_LETTERS = {
    "LATIN": {
        "de": "ß",
        "es": "ñ",
        "pl": "[ąęłńśźż]",
        "pt": "õ(?=e)",
        "ro": "[șț]",
        "tr": "[ğı]",
        "cs": "[řěů]",
        "vi": "[ơưạảấầậắặẹếềểệịọốồộớờợụủứừữự]",
    },
    "CYRILLIC": {"bg": "ъ(?![еёюя])", "uk": "[іїєґ]", "ru": "[ыэё]"},
    "ARABIC": {"ar": "[ةىكيإ]", "ur": "[ٹڈڑےںھہ]"},
    "DEVANAGARI": {"mr": "ळ"},
}
"""Patterns of letters that only one of a script's languages has; each counts as a frequent word. Vietnamese
has no õ before e, and Russian has ъ only before the four vowels."""
_CONTRACTED = re.compile(r"(?<=[a-z])['\u2019][stdm]\b")
"""Of English words: the letters of `it's` and `don't` are words of other languages."""
_LEAST_WORDS = 2
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
_SYLLABLES, _LETTERS_EACH = ("CJK", "HANGUL"), 2
"""Scripts whose signs are syllables, and about how many letters each stands for."""
LANGUAGES = frozenset({*_SCRIPTS.values(), *(code for known in _WORDS.values() for code in known)})
_RUN = re.compile(r"[^\W\d_]+(?:[\u0300-\u036f\u0900-\u0d7f]+[^\W\d_]*)*")


def language_of(text: str) -> str | None:
    """ISO code of the language; None where the text is in none of those known, or says too little.

    In a script of several languages a text says too little if no language has more of its words than every
    other one, or if only one word speaks for it: "Hallo wereld" has one word of German, and is Dutch. A
    letter of `_LETTERS` decides alone. Fenced blocks, whose code has English words, are read only where the
    text around them says too little.
    """
    around = _around_blocks(text)
    return _language_of(around) or (_language_of(text) if around != text else None)


def _around_blocks(text: str) -> str:
    kept: list[str] = []
    fence, begun = "", 0
    for line in text.split("\n"):
        kept.append(line)
        if (mark := _FENCE.match(line)) is None:
            continue
        if not fence:
            fence, begun = mark[1], len(kept) - 1
        elif mark[1].startswith(fence) and not mark[2].strip():
            del kept[begun:]
            fence = ""
    return "\n".join(kept)


def _language_of(text: str) -> str | None:
    scripts = Counter[str]()
    for letter, count in Counter(filter(str.isalpha, text)).items():
        scripts[unicodedata.name(letter, "?").split()[0]] += count
    if not scripts:
        return None
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > 0.2 * scripts.total():
        return "ja"  # beside Chinese characters
    for name in _SYLLABLES:
        scripts[name] *= _LETTERS_EACH
    script = _leader(scripts)
    if script is None or script in _SCRIPTS:
        return _SCRIPTS.get(script or "")
    lowered = _CONTRACTED.sub("", text.lower())
    found = Counter(_RUN.findall(lowered))
    listed, letters = _LISTED.get(script, {}), _LETTERS.get(script, {})
    votes = Counter({code: sum(found.get(word, 0) for word in words) for code, words in listed.items()})
    own = Counter({code: len(re.findall(signs, lowered)) for code, signs in letters.items()})
    votes += own
    code = _leader(votes)
    if code is None or own[code]:
        return code
    # One word that stands twice speaks once: "Die hard fans die young" is no German.
    return code if len(found.keys() & listed[code]) >= _LEAST_WORDS else None


def _leader(counts: Counter[str]) -> str | None:
    """What was counted more often than everything else."""
    first, second = [*counts.most_common(2), ("", 0), ("", 0)][:2]
    return first[0] if first[1] > second[1] else None
