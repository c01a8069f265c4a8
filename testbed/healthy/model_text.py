"""Output of models with tool calls, in the form that each parser expects."""

import json

NAMES = ("get_weather", "find", "set_alarm_2")
PROPERTIES = {
    "city": {"type": "string"}, "note": {"type": "string"}, "days": {"type": "integer"}, "share": {"type": "number"},
    "exact": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}}, "more": {"type": "object"},
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": PROPERTIES}}}
    for name in NAMES
]
WORDS = (
    "Paris", "New York", "S\u00e3o Paulo \u2603 \U0001f600", "\u6771\u4eac\u306e\u5929\u6c17", "a \"b\" \\ c\n\td", "", " ", "}", "{\"x\": [1, 2]}", "</tool_call>?",
    "def f(x):\n    return {'a': [x, \"}\"]}\n", "find", "call find with {\"city\": \"Oslo\"} later", "\u200d\U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301 \u202e", "x" * 40,
    "https://example.org/?a=1&b=%20", "1, 2; 3", "null", "true", "12",
)  # fmt: skip
PROSE = (
    "", "", "", "I will look it up.\n", "Use get_weather for that.\n", "\n\n", "First: {\"city\": \"Oslo\"} is no call.\n", "Das \u00fcberpr\u00fcfe ich \U0001f50d: ",
    "`find` takes {\"city\": ...}.\n", "a < b and c > d\n", "[1, 2] ", "Let me call find(city=\"Rome\").\n", "| a | b |\n|---|---|\n",
)  # fmt: skip


def word(pick):
    return pick.choice(WORDS) if pick.random() < 0.8 else "".join(pick.choices("abc {}[]\"\\,:\n<|>\u00e9\u6771\U0001f600", k=pick.randint(1, 30)))


def arguments(pick):
    """Arguments of a call."""
    make = {
        "city": word, "note": word,
        "days": lambda pick: pick.choice((0, 3, -7, 10**12)),
        "share": lambda pick: pick.choice((1.5, 0.1, -2e-7, 3.0)),
        "exact": lambda pick: pick.random() < 0.5,
        "tags": lambda pick: [word(pick) for _ in range(pick.randint(0, 3))],
        "more": lambda pick: {"x": {"y": [1, 2, {"z": None}]}, "s": word(pick)},
    }  # fmt: skip
    names = pick.sample(sorted(make), pick.choice((0, 1, 1, 1, 2, 2, 3, 7)))
    return {name: make[name](pick) for name in names}


def written(value, style):
    if style == "compact":
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if style == "indented":
        return json.dumps(value, indent=2, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=style == "ascii")


# JSON: text before the calls, each call, between calls, and after them. `%n` is the name, `%a` the arguments, `%i` the number of the call.
OBJECT = '{"name": "%n", "arguments": %a}'
PARAMETERS = '{"name": "%n", "parameters": %a}'
JSON_FORMS = {
    "hermes": ("", f"<tool_call>\n{OBJECT}\n</tool_call>", "\n", ""),
    "llama": ("<|python_tag|>", PARAMETERS, ";", ""),
    "plain": ("", PARAMETERS, "; ", ""),
    "mistral": ("[TOOL_CALLS] [", OBJECT, ", ", "]"),
    "mistral_names": ("", "[TOOL_CALLS]%n[ARGS]%a", "", ""),
    "deepseek_v3": (
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>%n\n```json\n%a\n```<\uff5ctool\u2581call\u2581end\uff5c>",
        "\n", "<\uff5ctool\u2581calls\u2581end\uff5c>",
    ),
    "deepseek_v31": (
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5ctool\u2581call\u2581begin\uff5c>%n<\uff5ctool\u2581sep\uff5c>%a<\uff5ctool\u2581call\u2581end\uff5c>",
        "", "<\uff5ctool\u2581calls\u2581end\uff5c>",
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.%n:%i<|tool_call_argument_begin|>%a<|tool_call_end|>",
        "", "<|tool_calls_section_end|>",
    ),
    "internlm": ("", f"<|action_start|> <|plugin|>\n{PARAMETERS}<|action_end|>", "\n", ""),
    "harmony": ("", "<|start|>assistant<|channel|>commentary to=functions.%n <|constrain|>json<|message|>%a<|call|>", "", ""),
    "gigachat3": ("", f"<|function_call|>{OBJECT}", "\n", ""),
    "apertus": ("<|tools_prefix|>[", '{"%n": %a}', ", ", "]<|tools_suffix|>"),
    "cohere": ("<|START_ACTION|>[\n", '{"tool_call_id": "%i", "tool_name": "%n", "parameters": %a}', ",\n", "\n]<|END_ACTION|>"),
    "granite": ("<|tool_call|>[", OBJECT, ", ", "]"),
    "granite_20b": ("", f"<function_call> {OBJECT}", "", ""),
    "tool_calls": ("<tool_calls>[", OBJECT, ", ", "]</tool_calls>"),
    "phi4": ("functools[", OBJECT, ", ", "]"),
    "xlam": ("[", OBJECT, ", ", "]"),
    "longcat": ("", f"<longcat_tool_call>{OBJECT}</longcat_tool_call>", "\n", ""),
    "inkling": ("", '<|message_model|>%n<|content_invoke_tool_json|>{"name":"%n","args":%a}<|end_message|>', "", ""),
    "dots": ("<dots_function_call>\n", OBJECT, "\n", "\n</dots_function_call>"),
    "lfm2": ("<|tool_call_start|>[", OBJECT, ", ", "]<|tool_call_end|>"),
    "iquest": ("", f"<iquest_tool_call>\n{OBJECT}\n</iquest_tool_call>", "\n", ""),
    "ifm": ("<ifm|tool_calls>", f"<ifm|tool_call>{OBJECT}</ifm|tool_call>", "", "</ifm|tool_calls>"),
}  # fmt: skip
# Markup: text before the calls, begin and end of a call, an argument (`%k`, its value `%v`, and whether it is text `%s`), and the end.
XML_FORMS = {
    "qwen3_coder": ("", "<tool_call>\n<function=%n>\n", "</function>\n</tool_call>", "<parameter=%k>\n%v\n</parameter>\n", ""),
    "glm": ("", "<tool_call>%n\n", "</tool_call>", "<arg_key>%k</arg_key>\n<arg_value>%v</arg_value>\n", ""),
    "hunyuan": ("<tool_calls>\n", "<tool_call>%n<tool_sep>\n", "</tool_call>\n", "<arg_key>%k</arg_key>\n<arg_value>%v</arg_value>\n", "</tool_calls>"),
    "minimax": ("<minimax:tool_call>\n", '<invoke name="%n">\n', "</invoke>\n", '<parameter name="%k">%v</parameter>\n', "</minimax:tool_call>"),
    "dsml": ("<\uff5cDSML\uff5cfunction_calls>\n", '<\uff5cDSML\uff5cinvoke name="%n">\n', "</\uff5cDSML\uff5cinvoke>\n",
             '<\uff5cDSML\uff5cparameter name="%k" string="%s">%v</\uff5cDSML\uff5cparameter>\n', "</\uff5cDSML\uff5cfunction_calls>"),
    "dsml_calls": ("<\uff5cDSML\uff5ctool_calls>\n", '<\uff5cDSML\uff5cinvoke name="%n">\n', "</\uff5cDSML\uff5cinvoke>\n",
                   '<\uff5cDSML\uff5cparameter name="%k" string="%s">%v</\uff5cDSML\uff5cparameter>\n', "</\uff5cDSML\uff5ctool_calls>"),
    "step3": ("<\uff5ctool_calls_begin\uff5c>\n", '<\uff5ctool_call_begin\uff5c>function<\uff5ctool_sep\uff5c><steptml:invoke name="%n">\n',
              "</steptml:invoke><\uff5ctool_call_end\uff5c>\n", '<steptml:parameter name="%k">%v</steptml:parameter>\n', "<\uff5ctool_calls_end\uff5c>"),
    "minicpm": ("", '<function name="%n">', "</function>", '<param name="%k">%v</param>', ""),
    "seed": ("", "<seed:tool_call>\n<function=%n>\n", "</function>\n</seed:tool_call>", "<parameter=%k>%v</parameter>\n", ""),
    "kimi_k3": ("<|open|>tools<|sep|>", '<|open|>call tool="%n" index="1"<|sep|>', "<|close|>call<|sep|>",
                '<|open|>argument key="%k" type="string"<|sep|>%v<|close|>argument<|sep|>', "<|close|>tools<|sep|>"),
}  # fmt: skip
PYTHON_FORMS = {
    "pythonic": ("[", "]"), "pythonic_lfm2": ("<|tool_call_start|>[", "]<|tool_call_end|>"), "pythonic_olmo3": ("<function_calls>", "</function_calls>"),
}  # fmt: skip
FORMS = (*JSON_FORMS, *XML_FORMS, *PYTHON_FORMS)

# Forms of each parser, in the names of SGLang and vLLM. A parser without an entry gets all forms in turn.
BY_PARSER = {
    "llama3": ("llama", "plain"), "llama3_json": ("llama", "plain"), "llama4_json": ("llama", "plain"), "llama4_pythonic": ("pythonic",),
    "pythonic": ("pythonic",), "olmo3": ("pythonic_olmo3",), "lfm2": ("lfm2", "pythonic_lfm2"), "mistral": ("mistral", "mistral_names"),
    "deepseekv3": ("deepseek_v3",), "deepseek_v3": ("deepseek_v3",), "deepseekv31": ("deepseek_v31",), "deepseek_v31": ("deepseek_v31",),
    "deepseekv32": ("dsml",), "deepseek_v32": ("dsml",), "deepseekv4": ("dsml_calls",), "deepseek_v4": ("dsml_calls",), "deepseekv41": ("dsml_calls",),
    "deepseek_v41": ("dsml_calls",), "kimi_k2": ("kimi_k2",), "kimi_k3": ("kimi_k3",), "interns1": ("internlm",), "internlm": ("internlm",),
    "gpt-oss": ("harmony",), "openai": ("harmony",), "gigachat3": ("gigachat3",), "apertus2509": ("apertus",), "apertus": ("apertus",),
    "cohere_command4": ("cohere",), "cohere_command3": ("cohere",), "granite": ("granite",), "granite-20b-fc": ("granite_20b",), "granite4": ("hermes",),
    "jamba": ("tool_calls",), "hunyuan_a13b": ("tool_calls",), "hunyuan": ("hunyuan",), "hy_v3": ("hunyuan",), "phi4_mini_json": ("phi4",), "xlam": ("xlam",),
    "longcat": ("longcat",), "inkling": ("inkling",), "dots": ("dots", "minimax"), "iquest_q1": ("iquest",), "k2_horizon": ("ifm",), "minimax-m2": ("minimax",),
    "minimax_m2": ("minimax",), "step3": ("step3",), "minicpm5": ("minicpm",), "seed_oss": ("seed",), "glm": ("glm",), "glm45": ("glm",), "glm47": ("glm",),
    "poolside_v1": ("glm",), "ling3": ("glm",), "qwen3_coder": ("qwen3_coder",), "qwen3_xml": ("qwen3_coder",), "step3p5": ("qwen3_coder",),
    "nanbeige": ("qwen3_coder",), "mimo": ("qwen3_coder", "hermes"), "spark25": ("glm", "qwen3_coder"), "hermes": ("hermes",), "qwen3_json": ("hermes",),
    "qwen": ("hermes",), "qwen25": ("hermes",), "trinity": ("hermes",), "ernie45": ("hermes",),
}  # fmt: skip
# Begin and end of reasoning; others have these tags.
TAGS = ("<think>", "</think>")
REASONING = {
    "kimi": ("\u25c1think\u25b7", "\u25c1/think\u25b7"), "mistral": ("[THINK]", "[/THINK]"), "gemma4": ("<|channel>thought\n", "<channel|>"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "openai_gptoss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "granite": ("Here is my thought process:", "Here is my response:"), "seed_oss": ("<seed:think>", "</seed:think>"),
    "hunyuan_a13b": ("<think>\n", "\n</think>\n<answer>\n"), "cohere_command3": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "cohere_command4": ("<|START_THINKING|>", "<|END_THINKING|>"), "apertus2509": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "kimi_k3": ("<|open|>think<|sep|>", "<|close|>think<|sep|>"), "minimax-m3": ("<mm:think>", "</mm:think>"), "minimax_m3": ("<mm:think>", "</mm:think>"),
}  # fmt: skip


def calls_in(form, calls, pick):
    """Text of the calls."""
    style = pick.choice(("spaced", "spaced", "spaced", "compact", "indented", "ascii"))
    if form in JSON_FORMS:
        before, each, between, after = JSON_FORMS[form]
        texts = [
            each.replace("%n", name).replace("%i", str(i)).replace("%a", written(values, style))
            for i, (name, values) in enumerate(calls)
        ]
        return before + between.join(texts) + after
    if form in PYTHON_FORMS:
        before, after = PYTHON_FORMS[form]
        return before + ", ".join(name + "(" + ", ".join(f"{k}={v!r}" for k, v in values.items()) + ")" for name, values in calls) + after
    before, begin, end, each, after = XML_FORMS[form]
    texts = []
    for name, values in calls:
        members = [
            each.replace("%k", k).replace("%s", str(isinstance(v, str)).lower()).replace("%v", v if isinstance(v, str) else written(v, style))
            for k, v in values.items()
        ]
        texts.append(begin.replace("%n", name) + "".join(members) + end)
    return before + "\n".join(texts) + after


def output(parser, reasoning, pick):
    """A model's output for these parsers, and the arguments of its calls."""
    text = ""
    if reasoning and pick.random() < 0.8:
        begin, end = REASONING.get(reasoning, TAGS)
        text += (begin if pick.random() < 0.7 else "") + pick.choice(PROSE) * pick.randint(1, 3) + word(pick) + (end if pick.random() < 0.9 else "")
    text += pick.choice(PROSE)
    calls = []
    if parser and pick.random() < 0.85:
        form = pick.choice(BY_PARSER.get(parser, FORMS) if pick.random() < 0.92 else FORMS)
        calls = [(pick.choice(NAMES), arguments(pick)) for _ in range(pick.choice((1, 1, 1, 1, 2, 3)))]
        text += calls_in(form, calls, pick)
        if pick.random() < 0.15:
            text += pick.choice(PROSE)
    while not calls and (not text or pick.random() < 0.6):
        text += word(pick) + pick.choice(PROSE) + " "
    return text, [values for _name, values in calls]


def pieces_of(text, pick, longest=(2, 6, 12, 20, 40)):
    """The output in tokens of a few characters; markers are often whole."""
    most = pick.choice(longest)
    pieces = []
    while text:
        special = text[0] == "<" and text.find(">") + 1
        length = special if special and special < 40 and " " not in text[:special] else pick.randint(1, most)
        length = min(length, text.find("<", 1) % (len(text) + 1) or len(text))
        pieces.append(text[:length])
        text = text[length:]
    return pieces
