"""The words of the grammar: ten topics and what all of them share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """The vocabulary of one topic; verbs are written `base` or `base/past/participle`.

    Args:
        name: what documents call the topic.
        roles: nouns for people, singular.
        things: countable nouns for things, singular.
        places: `preposition noun`, where things happen.
        adjectives: for things.
        transitive: what a person does to a thing.
        person_verbs: what a person does without an object.
        thing_verbs: what a thing does without an object.
    """

    name: str
    roles: tuple[str, ...]
    things: tuple[str, ...]
    places: tuple[str, ...]
    adjectives: tuple[str, ...]
    transitive: tuple[str, ...]
    person_verbs: tuple[str, ...]
    thing_verbs: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(phrase.strip() for phrase in text.split(","))


def _topic(name: str, *lists: str) -> Topic:
    roles, things, places, adjectives, transitive, person_verbs, thing_verbs = lists
    return Topic(
        name,
        _words(roles),
        _words(things),
        _phrases(places),
        _words(adjectives),
        _words(transitive),
        _words(person_verbs),
        _words(thing_verbs),
    )


TOPICS = (
    _topic(
        "harbour",
        "sailor captain fisherwoman pilot diver lighthousekeeper shipwright smuggler",
        "boat net rope anchor sail lantern barrel compass rudder buoy chart mast oar trawler "
        "barnacle catamaran",
        "on the pier, in the harbour, at the quay, near the lighthouse, behind the breakwater, "
        "beneath the bridge",
        "wet salty rusty broad leaky weathered barnacled seaworthy narrow white tarred swift",
        "mend moor paint row/rowed/rowed load steer haul drag/dragged/dragged launch unfasten "
        "sink/sank/sunk",
        "sail swim/swam/swum drift whistle shiver disembark",
        "float drift rot/rotted/rotted creak vanish capsize",
    ),
    _topic(
        "kitchen",
        "cook baker waiter guest confectioner butcher dishwasher landlady",
        "pan loaf kettle spoon onion recipe plate pie oven jar knife lemon casserole "
        "rolling-pin pomegranate tablecloth",
        "in the kitchen, at the table, near the stove, in the pantry, behind the counter, "
        "on the terrace",
        "hot sweet burnt fresh sour crisp fragrant peppery greasy copper wholesome lukewarm",
        "bake slice stir/stirred/stirred wash taste peel boil serve chop/chopped/chopped "
        "eat/ate/eaten caramelise",
        "cook eat/ate/eaten hum/hummed/hummed cough bustle yawn",
        "steam burn sizzle simmer spoil evaporate",
    ),
    _topic(
        "garden",
        "gardener farmer botanist beekeeper neighbour shepherd florist landowner",
        "rose seed spade hedge apple wheelbarrow beehive fence tulip pond rake cabbage "
        "chrysanthemum greenhouse watering-can rhododendron",
        "in the garden, under the oak, by the pond, along the hedge, behind the barn, "
        "in the orchard",
        "green muddy ripe thorny tall wild fertile overgrown yellow shady withered fragrant",
        "plant water dig/dug/dug prune trim/trimmed/trimmed pick weed gather grow/grew/grown "
        "fertilise uproot",
        "kneel/knelt/knelt work sweat rest sneeze wander",
        "bloom ripen wither sprout fall/fell/fallen flourish",
    ),
    _topic(
        "laboratory",
        "chemist physicist assistant technician professor astronomer crystallographer student",
        "sample flask lens magnet crystal microscope battery formula sensor theory telescope "
        "notebook spectrometer centrifuge thermometer hypothesis",
        "in the laboratory, at the bench, under the microscope, in the observatory, "
        "beside the furnace, in the basement",
        "pure unstable precise magnetic transparent faint radioactive reliable tiny "
        "electromagnetic hollow experimental",
        "measure heat test weigh observe cool examine calibrate record dissolve prove",
        "think/thought/thought calculate experiment nod/nodded/nodded hesitate speculate",
        "glow melt expand explode oscillate crystallise",
    ),
    _topic(
        "music",
        "singer violinist pianist conductor drummer composer choirmaster percussionist",
        "song violin drum piano melody trumpet score concert guitar bow chorus symphony "
        "harpsichord metronome loudspeaker improvisation",
        "on the stage, in the hall, at the opera, behind the curtain, in the studio, "
        "beside the organ",
        "loud gentle slow melodious famous sad rhythmic dissonant brilliant solemn quiet "
        "unforgettable",
        "play sing/sang/sung tune hear/heard/heard practise compose rehearse transpose copy "
        "orchestrate applaud",
        "sing/sang/sung dance bow perform listen improvise",
        "echo resonate fade begin/began/begun reverberate stop/stopped/stopped",
    ),
    _topic(
        "court",
        "judge lawyer witness clerk thief detective magistrate stenographer",
        "letter contract document verdict key witness-box case envelope statement fine "
        "photograph testimony affidavit briefcase fingerprint countersignature",
        "in the court, before the jury, at the station, in the archive, outside the prison, "
        "near the bank",
        "false guilty secret legal important anonymous unsigned confidential clear disputed "
        "incriminating strict",
        "sign read/read/read steal/stole/stolen hide/hid/hidden find/found/found prove copy "
        "investigate reject confiscate scrutinise",
        "lie/lied/lied confess argue whisper swear/swore/sworn testify",
        "disappear matter change surface expire circulate",
    ),
    _topic(
        "school",
        "teacher pupil headmistress librarian tutor caretaker schoolboy mathematician",
        "book lesson pencil desk blackboard essay exam ruler dictionary map poem satchel "
        "encyclopaedia protractor multiplication-table timetable",
        "in the classroom, at the library, on the playground, in the corridor, beside the gate, "
        "at the university",
        "difficult short clever boring dusty grammatical illegible thick useful long "
        "mathematical unfinished",
        "read/read/read write/wrote/written explain borrow learn correct draw/drew/drawn "
        "memorise translate open close",
        "study laugh fidget daydream answer graduate",
        "end begin/began/begun tear/tore/torn fall/fell/fallen improve continue",
    ),
    _topic(
        "hospital",
        "doctor nurse patient surgeon pharmacist anaesthetist visitor midwife",
        "pill bandage bed syringe wound scan thermometer crutch wheelchair fever stethoscope "
        "prescription ambulance tourniquet antibiotic questionnaire",
        "in the hospital, at the clinic, beside the bed, in the ward, outside the theatre, "
        "in the pharmacy",
        "sterile painful clean swollen mild urgent contagious bitter bandaged healthy chronic "
        "inflamed",
        "clean check order prescribe bandage swallow need disinfect prepare remove sterilise",
        "sleep/slept/slept recover limp/limped/limped faint breathe convalesce",
        "heal hurt/hurt/hurt bleed/bled/bled work swell/swelled/swollen deteriorate",
    ),
    _topic(
        "railway",
        "driver passenger guard porter engineer stationmaster traveller signalwoman",
        "train ticket suitcase platform wagon signal whistle engine carriage timetable "
        "locomotive umbrella track turnstile undercarriage newspaper",
        "at the station, on the platform, in the tunnel, near the crossing, in the carriage, "
        "across the border",
        "late crowded fast noisy heavy electric empty punctual long-distance narrow-gauge old "
        "overloaded",
        "miss catch/caught/caught drive/drove/driven stop/stopped/stopped carry repair buy/bought/"
        "bought inspect forget/forgot/forgotten couple uncouple",
        "wait travel/travelled/travelled hurry sleep/slept/slept complain arrive",
        "arrive stop/stopped/stopped rattle brake derail accelerate",
    ),
    _topic(
        "mountain",
        "climber guide hunter ranger geologist shepherdess mountaineer hermit",
        "rock cave peak tent glacier stream bear rucksack avalanche trail torch cliff "
        "precipice carabiner snowshoe chamois",
        "on the summit, in the valley, below the glacier, at the camp, along the ridge, "
        "in the forest",
        "steep icy cold remote dangerous snowy jagged inaccessible high windswept loose "
        "prehistoric",
        "climb see/saw/seen cross reach follow avoid explore photograph light/lit/lit "
        "traverse circumnavigate",
        "climb slip/slipped/slipped camp rest shout acclimatise",
        "crumble freeze/froze/frozen slide/slid/slid shine/shone/shone roar disintegrate",
    ),
)

BOYS = _words(
    "Tom Peter Omar Luca Henry Ivan Samuel Ravi Jonas Felix Bartholomew Oskar Daniel Hugo "
    "Theodore Kenji Martin Aleksander Paul Mustafa"
)
GIRLS = _words(
    "Anna Maria Lucy Ingrid Sofia Helen Priya Clara Josephine Ruth Yuki Magdalena Emma Nadia "
    "Evangeline Alice Leila Wilhelmina Rosa Katharina"
)
SURNAMES = _words(
    "Bell Novak Carter Lindqvist Moreno Abernathy Okafor Stone Wojciechowski Hill Tanaka "
    "Papadopoulos Marsh Fitzwilliam Rossi Keller Vandenberg Shaw Oyelaran Brook"
)

ROLE_GENDER = {
    **dict.fromkeys(
        _words("fisherwoman landlady headmistress midwife signalwoman shepherdess"), "f"
    ),
    **dict.fromkeys(_words("choirmaster schoolboy stationmaster"), "m"),
}

PERSON_ADJECTIVES = _words(
    "young old tired happy honest nervous tall curious stubborn generous absent-minded polite "
    "hungry proud lonely conscientious"
)
FEELINGS = _words("happy tired angry proud calm worried ready late grateful inconsolable")
ADJECTIVES = _words("small large new old beautiful strange heavy plain second last")
ADVERBS = _words(
    "slowly quickly carefully quietly often suddenly soon again happily reluctantly "
    "simultaneously badly well twice together enthusiastically"
)
SENTENCE_ADVERBS = _words(
    "yesterday then later fortunately afterwards sometimes eventually meanwhile unexpectedly"
)
DEGREES = _words("very quite rather too extremely")
SUBORDINATORS = _words("because when while although before after until if")
TIMES = _phrases(
    "in the morning, in the evening, at night, on Monday, on Thursday, after the storm, "
    "before the holiday, in the winter, during the meeting, at the weekend"
)

PERSON_TRANSITIVE = _words(
    "help thank call watch visit meet/met/met praise warn greet trust follow remember "
    "congratulate interrupt"
)
DITRANSITIVE = _words(
    "give/gave/given send/sent/sent show/showed/shown offer lend/lent/lent sell/sold/sold "
    "bring/brought/brought hand"
)
PARTICLE_VERBS = _words(
    "pick:up put/put/put:down take/took/taken:away throw/threw/thrown:out turn:over "
    "bring/brought/brought:back lift:up set/set/set:aside"
)
CONTROL = _words(
    "want try hope decide begin/began/begun need refuse promise forget/forgot/forgotten"
)
SPEECH = _words("say/said/said believe know/knew/known think/thought/thought explain claim notice")
QUOTING = _words("say/said/said reply whisper shout announce mutter")
MODALS = _words("will can must should may could might would")
NUMBERS = _words("two three four five seven twelve twenty")
