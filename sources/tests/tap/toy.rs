//! A toy engine defined in this file: its two-part messages reach the tap, the ledger, findings, the report and an export, and
//! its log lines an import.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use adapter::decode::{Decode, Decoded, Decoders, Format, Opening as Begins, Refused, Shape, SocketFormat};
use logs::{Import, LineForm, LogLines, LoggedRid, MalformedLine, Statement, StatementKind};
use outputs::export::{self, Export, Opening};
use outputs::report::{Clock, Report};
use session::LiveSource as _;
use sources::tap::{Tap, TapHop};
use trace::clock::Anchor;
use trace::engine::{Drops, Engines, Facts, Mode, StageNames};
use trace::event::{Capabilities, Chunk, Delivery, Event, Finish, IdColumn, Kind, Response, Stage, What};
use trace::path::Ends;
use trace::{Analysis, Config, MonoNs, ReportInput};
use zmq_tap::relay::{Pair, RelayOptions};
use zmq_tap::zmtp::{Mark, Scanner};

const NAME: &str = "toy";
/// First part of every message.
const MAGIC: &[u8] = b"TOY1";

#[derive(Debug)]
struct Toy;

impl Facts for Toy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "Toy"
    }

    fn drops(&self) -> Option<Drops> {
        Some(Drops { fixed_in: "2.0", flag: "--toy-incremental" })
    }

    fn stages(&self) -> &'static StageNames {
        &StageNames {
            first_sent: "sent",
            first_received: "received",
            first_delivered: "delivered",
            discarded: "discarded",
            ends: &[],
            order: &["sent", "received"],
        }
    }
}

/// Lines such as `toy: sent rid`.
#[derive(Debug)]
struct ToyLog;

impl LogLines for ToyLog {
    fn engine_name(&self) -> &'static str {
        NAME
    }

    fn forms_summary(&self) -> &'static str {
        "toy lines"
    }

    fn line_forms(&self) -> &'static [LineForm] {
        &[LineForm {
            mark: "toy: ",
            name: "toy",
            parse: |rest, _, sink| {
                let (name, rid) = rest.split_once(' ').ok_or(MalformedLine)?;
                let rid = LoggedRid::parse(rid).ok_or(MalformedLine)?;
                sink(&Statement {
                    wall_ns: None,
                    is_rid_truncated: rid.is_truncated,
                    kind: StatementKind::Stage(Stage::new(rid.text, name, "toy")),
                });
                Ok(())
            },
        }]
    }
}

/// Reads lines such as `rid 3` or `rid 1 end` in the second part: a request and its number of new ids.
#[derive(Debug, Default)]
struct ToyDecoder {
    home: Vec<Chunk<'static>>,
}

impl Decode for ToyDecoder {
    fn recognises(&self, parts: &[&[u8]]) -> bool {
        parts.first() == Some(&MAGIC)
    }

    fn keep_ids(&mut self) {}

    fn decode<'a>(&'a mut self, parts: &[&'a [u8]]) -> Result<Decoded<'a>, Refused> {
        let malformed =
            || Refused { reason: "malformed", detail: String::from("not a line of a request and a number") };
        let &[_, body] = parts else { return Err(malformed()) };
        let mut chunks = std::mem::take(&mut self.home);
        for line in str::from_utf8(body).map_err(|_| malformed())?.lines() {
            let mut words = line.split(' ');
            let (Some(rid), Some(listed)) = (words.next(), words.next()) else {
                return Err(malformed());
            };
            chunks.push(Chunk {
                listed: Some(listed.parse().map_err(|_| malformed())?),
                finish: words.next().map(|_| Finish::Stop),
                ..Chunk::new(rid)
            });
        }
        let shape = Shape {
            engine: NAME,
            class: "Lines",
            codec: "text",
            schema: "1.0..1.9",
            kind: Kind::TokenIds,
            ids: IdColumn::Uncounted,
            waiter: None,
        };
        Ok(Decoded::new(shape, chunks, &mut self.home))
    }
}

const TOY: Format = Format {
    engine: NAME,
    decoder: |_| Box::<ToyDecoder>::default(),
    may_begin_with: |byte| byte == MAGIC[0],
    opening: |body, _| {
        if body.starts_with(MAGIC) {
            Begins::Yes(None)
        } else if MAGIC.starts_with(body) {
            Begins::More
        } else {
            Begins::No
        }
    },
    hop: |_| None,
    receivers: &[],
    response_id: None,
    read_requests: |_, _| Err(Refused { reason: "codec", detail: "requests are not observed".to_owned() }),
    read_pair_message: |_, _| None,
};

/// The toy is one engine of several.
const FORMATS: &[Format] = &[engines::sglang::FORMAT, TOY];
const FACTS: Engines = Engines(&[&engines::sglang::SgLang, &Toy]);

fn config() -> Config {
    Config { engines: FACTS, ..Config::default() }
}

/// A ZMTP 3.1 stream of messages with two parts each.
fn stream(messages: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    for message in messages {
        bytes.extend_from_slice(&[1, 4]);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0, u8::try_from(message.len()).expect("a short message")]);
        bytes.extend_from_slice(message.as_bytes());
    }
    bytes
}

/// Sends the messages through a tap, then delivers tokens, and returns the report and the exported spans.
fn run(messages: &[&str], deliveries: &[(u32, u32)]) -> (Report, String, Tap) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| {
        let path = folder.path().join(name);
        format!("ipc://{}", path.display()).parse().expect("an endpoint")
    };
    let mut hop = TapHop::new(Pair { listen: at("in.sock"), upstream: at("out.sock") });
    hop.ends = Some(Ends::from("engine->api").to_owned());
    (hop.origin, hop.last) = (true, true);
    hop.further_capabilities = Capabilities { delivered: true, ..Capabilities::default() };
    let upstream = UnixListener::bind(folder.path().join("out.sock")).expect("the upstream's socket");
    let options = RelayOptions { formats: FORMATS, ..RelayOptions::default() };
    let mut tap = Tap::start(vec![hop], options).expect("the tap starts");
    let mut sender = UnixStream::connect(folder.path().join("in.sock")).expect("the tap accepts");
    let (mut receiver, _) = upstream.accept().expect("the tap connects");
    let bytes = stream(messages);
    sender.write_all(&bytes).expect("written");
    let mut copy = vec![0; bytes.len()];
    receiver.read_exact(&mut copy).expect("passed on");
    assert_eq!(copy, bytes);

    let mut out = Vec::new();
    let opening = Opening::new("tap", "0.1.0", Anchor::now());
    let mut export =
        Export::new(export::Format::Otlp, export::Options::default(), config(), &opening, &mut out).expect("a vector");
    let (mut frames, until) = (0, Instant::now() + Duration::from_secs(20));
    while frames < messages.len() && Instant::now() < until {
        tap.poll(&mut |event| {
            frames += usize::from(matches!(event.what, What::Sent(_)));
            export.event(event).expect("a vector");
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(frames, messages.len(), "{:?}", tap.stats());
    for &(tokens, count) in deliveries {
        let delivery = Delivery {
            rid: "a",
            tokens,
            mode: Mode::Incremental,
            completion_tokens: Some(count),
            finished: false,
            response: Response::Streamed,
            without_text: 0,
        };
        let what = What::Delivered(delivery);
        export.event(&Event { at: MonoNs::now(), what }).expect("a vector");
    }
    export.tick(MonoNs::now()).expect("a vector");
    let report = export.finish(&ReportInput::for_source("tap")).expect("a vector");
    (report, String::from_utf8(out).expect("UTF-8"), tap)
}

#[test]
fn an_engine_in_one_file_is_followed_from_its_messages_to_the_report() {
    // A stream counts as observed from its start only if its connection was observed for a while before.
    let mut messages = vec![""; 60];
    messages.extend(["a 1", "a 3\nb 1", "a 2", "a 1 end"]);
    let (report, spans, tap) = run(&messages, &[(1, 1), (2, 6), (1, 7)]);
    let source = &report.source;
    assert_eq!((&*source.engine, source.engine_version.as_deref()), (NAME, Some("1.0..1.9")));
    assert_eq!((report.requests.seen, report.requests.finished), (2, 1));
    assert_eq!((report.tokens.sent, report.requests.joined_late), (8, 0));
    assert_eq!((report.chunks.dropped_confirmed, report.chunks.tokens_lost), (Some(1), Some(3)));
    let dropped = report.findings.iter().find(|finding| finding.kind == "dropped-chunks");
    let advice = dropped.and_then(|finding| finding.advice.as_deref()).expect("advice");
    assert!(advice.contains("2.0") && advice.contains("--toy-incremental"), "{advice}");
    let text = report.to_text(&Clock::of(&report, None));
    assert!(text.contains("toy 1.0..1.9"), "{text}");
    assert!(spans.contains(r#""toy""#) && !spans.contains("sglang"), "{spans}");
    let forms: Vec<_> = tap.forms().iter().map(|form| (form.class, form.codec, form.frames)).collect();
    assert_eq!(forms, [("Lines", "text", messages.len() as u64)]);
}

#[test]
fn log_lines_of_an_engine_in_one_file_are_imported() {
    const LOGS: &[&dyn LogLines] = &[&engines::sglang::Log, &ToyLog];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("toy.log");
    let log = "2026-01-18T07:55:00Z toy: sent a\n2026-01-18T07:55:02Z toy: received a\n2026-01-18T07:55:02Z toy: ?\n";
    std::fs::write(&path, log).expect("written");
    let mut import = Import::open(&[path], LOGS, logs::ImportOptions::default()).expect("a log");
    let mut analysis = Analysis::new(config());
    while import.read_some_lines_and_pass_events(&mut |event| analysis.apply(event)) {}
    import.fail_if_nothing_recognised().expect("known lines");
    assert_eq!((import.stats().forms["toy"], import.stats().malformed), (2, 1));
    let report = Report::of(&analysis, &ReportInput::for_source("import"));
    assert_eq!(&*report.source.engine, NAME);
    assert_eq!(report.gap_ns.and_then(|gap| gap.max), Some(2_000_000_000));
}

#[test]
fn a_message_of_unknown_format_is_one_undecoded_frame() {
    let mut tap_formats = Decoders::new(FORMATS, 1_000);
    let mut carries = SocketFormat::default();
    let mut refused =
        |parts: &[&[u8]]| tap_formats.decode(&mut carries, parts).map(|_| ()).expect_err("refused").reason;
    assert_eq!(refused(&[b"hello"]), "codec");
    assert_eq!(refused(&[b"hello", b"world"]), "multipart");
    assert_eq!(refused(&[MAGIC, b"a"]), "malformed");
    assert_eq!(refused(&[b"\x80\x04N."]), "malformed");
}

#[test]
fn a_socket_keeps_the_first_format_that_fits() {
    let mut decoders = Decoders::new(FORMATS, 1_000);
    let (mut one, mut other) = (SocketFormat::default(), SocketFormat::default());
    assert!(decoders.decode(&mut one, &[MAGIC, b"a 1"]).is_ok());
    let pickle =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../zmq-tap/fixtures/messages/0.5.9/skip_first_1rid.pkl"))
            .expect("a fixture");
    assert!(decoders.decode(&mut one, &[&pickle]).is_err(), "the socket carries the toy's messages");
    let mut decoders = Decoders::new(FORMATS, 1 << 20);
    let decoded = decoders.decode(&mut other, &[&pickle]).expect("SGLang's");
    assert_eq!((decoded.shape().engine, decoded.chunks().len()), ("sglang", 1));
}

#[test]
fn framing_is_recovered_by_the_formats_alone() {
    let bytes = [&[0xf5; 100][..], &single(&["a 1", "b 2", "c 3"])].concat();
    let marks = |formats| {
        let mut marks = Vec::new();
        Scanner::mid_stream(formats).feed(&bytes, &mut |mark| marks.push(mark));
        marks
    };
    assert!(matches!(marks(FORMATS)[..], [Mark::Synced { .. }, Mark::Frame { .. }, Mark::Frame { .. }]));
    assert_eq!(marks(&[engines::sglang::FORMAT]), []);
}

/// Frames of messages with one part.
fn single(messages: &[&str]) -> Vec<u8> {
    let frame = |message: &&str| {
        let body = [MAGIC, message.as_bytes()].concat();
        [&[0, u8::try_from(body.len()).expect("a short message")][..], &body].concat()
    };
    messages.iter().flat_map(frame).collect()
}
