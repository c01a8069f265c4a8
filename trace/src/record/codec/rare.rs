//! Rare records: fields in sequence after their length and their number of new texts. New fields are only added at the end of a record; a
//! reader skips fields it does not know.

use super::bytes::{Cursor, Malformed, Put};
use super::codes::{Code, op};
use super::columns::Columns;
use super::text::{Reading, Texts};
use crate::engine::{Mode, Waiter};
use crate::event::{
    Answer, AnswerEnd, Away, AwayState, Capabilities, CpuSample, Engine, Hop, LoggedState, Merged, Missed, MissedCause,
    PollUse, QueueSample, SendWait, StackSample, Stage, ThreadPart, Undecoded, What,
};
use crate::id::{FrameId, HopId, ThreadId};

/// A record being written.
pub(super) struct Writing<'a> {
    texts: &'a mut Texts,
    columns: &'a mut Columns<Vec<u8>>,
    fields: &'a mut Vec<u8>,
    new: u64,
}

impl<'a> Writing<'a> {
    pub(super) fn new(texts: &'a mut Texts, columns: &'a mut Columns<Vec<u8>>, fields: &'a mut Vec<u8>) -> Self {
        fields.clear();
        Self {
            texts,
            columns,
            fields,
            new: 0,
        }
    }

    /// Appends the record to `rare`, or to `standing`.
    pub(super) fn end(self, standing: bool) {
        let column = if standing {
            &mut self.columns.standing
        } else {
            &mut self.columns.rare
        };
        column.number(self.fields.len() as u64);
        column.number(self.new);
        column.extend_from_slice(self.fields);
    }

    pub(super) fn number(&mut self, value: u64) {
        self.fields.number(value);
    }

    fn maybe(&mut self, value: Option<impl Into<u64>>) {
        self.fields.maybe(value.map(Into::into));
    }

    fn text(&mut self, text: &str) {
        let (place, new) = self.texts.place(text, self.columns);
        self.new += u64::from(new);
        self.number(u64::from(place));
    }

    fn code(&mut self, word: impl Code) {
        self.fields.push(word.code());
    }

    fn maybe_code(&mut self, word: Option<impl Code>) {
        self.maybe(word.map(Code::code));
    }

    fn frame(&mut self, id: FrameId) {
        self.number(u64::from(id.hop.0));
        self.number(u64::from(id.lane));
        self.number(id.seq);
    }

    fn thread(&mut self, id: ThreadId) {
        self.number(u64::from(id.pid));
        self.number(u64::from(id.tid));
    }

    fn share(&mut self, value: Option<f64>) {
        self.fields.push(u8::from(value.is_some()));
        if let Some(value) = value {
            self.fields.extend_from_slice(&value.to_bits().to_le_bytes());
        }
    }

    /// Writes the fields of a rare record and returns its kind; `None` for a columnar one.
    pub(super) fn what(&mut self, what: &What<'_>) -> Option<u8> {
        Some(match what {
            What::Engine(engine) => self.engine(engine),
            What::Hop(hop) => self.hop(hop),
            What::Undecoded(undecoded) => {
                self.frame(undecoded.id);
                self.number(undecoded.bytes);
                self.text(undecoded.reason);
                op::UNDECODED
            }
            What::SendWait(wait) => {
                self.number(u64::from(wait.hop.0));
                self.number(wait.ns);
                op::SEND_WAIT
            }
            What::Cpu(sample) => self.cpu(sample),
            What::Queue(sample) => {
                self.text(sample.hop);
                self.maybe(sample.receive_bytes);
                self.maybe(sample.send_bytes);
                op::QUEUE
            }
            What::Stack(sample) => self.stacks(sample),
            What::Stage(stage) => {
                self.text(stage.rid);
                self.text(stage.name);
                self.text(stage.by);
                self.maybe(stage.tokens);
                self.maybe(stage.pending);
                op::STAGE
            }
            What::LoggedState(logged) => self.logged(logged),
            What::Answered(answer) => self.answer(answer),
            What::Merged(merged) => {
                self.text(merged.rid);
                self.number(u64::from(merged.chunks));
                self.text(merged.by);
                op::MERGED
            }
            What::Missed(lost) => {
                self.maybe(lost.hop.map(|hop| hop.0));
                self.number(lost.count);
                self.code(lost.cause);
                op::LOST
            }
            What::Sent(_) | What::Forwarded(_) | What::Received(_) | What::Processed(_) | What::Delivered(_) => {
                return None;
            }
        })
    }

    fn engine(&mut self, engine: &Engine<'_>) -> u8 {
        self.fields.push(u8::from(engine.version.is_some()));
        self.text(engine.version.unwrap_or(""));
        self.maybe_code(engine.mode);
        self.maybe_code(engine.waiter);
        self.maybe(engine.turnaround);
        if let Some(name) = engine.name {
            self.text(name);
        }
        op::ENGINE
    }

    fn hop(&mut self, hop: &Hop<'_>) -> u8 {
        self.number(u64::from(hop.id.0));
        self.text(hop.name);
        self.text(hop.endpoint);
        self.maybe(hop.worker);
        let flags = [
            hop.origin,
            hop.last,
            hop.capabilities.sent,
            hop.capabilities.forwarded,
            hop.capabilities.received,
            hop.capabilities.processed,
            hop.capabilities.delivered,
        ];
        let flags = flags.iter().rev().fold(0, |all, &flag| all << 1 | u64::from(flag));
        self.number(flags);
        op::HOP
    }

    fn cpu(&mut self, sample: &CpuSample<'_>) -> u8 {
        self.thread(sample.thread);
        self.text(sample.role);
        self.text(sample.name);
        self.code(sample.part);
        self.number(sample.interval_ns);
        self.number(sample.on_ns);
        self.maybe(sample.wait_ns);
        self.maybe(sample.throttled_ns);
        self.fields.push(u8::from(sample.poll.is_some()));
        if let Some(poll) = sample.poll {
            self.number(poll.interval_ns);
            self.number(poll.polled_ns);
            self.number(poll.wakeups);
        }
        if let Some(away) = sample.away {
            self.code(away.state);
            self.text(away.place);
        }
        op::CPU
    }

    fn stacks(&mut self, sample: &StackSample<'_>) -> u8 {
        self.thread(sample.thread);
        self.text(sample.role);
        self.text(sample.function);
        self.text(sample.file);
        self.number(sample.interval_ns);
        for count in [sample.samples, sample.total, sample.own] {
            self.number(u64::from(count));
        }
        self.maybe(sample.gil);
        op::HOT
    }

    fn answer(&mut self, answer: &Answer<'_>) -> u8 {
        self.text(answer.rid);
        self.maybe(answer.tokens);
        self.maybe(answer.completion_tokens);
        self.code(answer.end);
        self.number(u64::from(answer.short_writes));
        self.maybe(answer.unacknowledged);
        op::ANSWERED
    }

    fn logged(&mut self, logged: &LoggedState<'_>) -> u8 {
        self.text(logged.by);
        self.maybe(logged.states);
        self.maybe(logged.rids);
        self.maybe(logged.recv_wait_ns);
        self.maybe(logged.more);
        self.share(logged.cpu);
        self.share(logged.cpu_system);
        op::LOGGED_STATE
    }
}

/// A record being read.
pub(super) struct RareReader<'b> {
    fields: Cursor<'b>,
    texts: Reading<'b>,
}

impl<'b> RareReader<'b> {
    /// Reads the next record of a column. Always skips its new texts in `texts`.
    pub(super) fn next(column: &mut Cursor<'b>, texts: &mut Reading<'b>) -> Result<Self, Malformed> {
        let length = column.number()?;
        let new = column.small()?;
        let fields = Cursor::new(column.bytes(length as usize)?);
        texts.pass(new);
        Ok(Self { fields, texts: *texts })
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        self.fields.number()
    }

    fn small(&mut self) -> Result<u32, Malformed> {
        self.fields.small()
    }

    fn text(&mut self) -> Result<&'b str, Malformed> {
        let place = self.small()?;
        self.texts.get(place)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        Ok(self.fields.byte()? != 0)
    }

    fn code<T: Code>(&mut self) -> Result<T, Malformed> {
        T::of(self.fields.byte()?)
    }

    fn maybe_code<T: Code>(&mut self) -> Result<Option<T>, Malformed> {
        match self.fields.maybe()? {
            None => Ok(None),
            Some(code) => T::of(u8::try_from(code).unwrap_or(u8::MAX)).map(Some),
        }
    }

    fn maybe<T: TryFrom<u64>>(&mut self) -> Result<Option<T>, Malformed> {
        let value = self.fields.maybe()?.map(T::try_from).transpose();
        value.map_err(|_| Malformed("a number is too large for its field"))
    }

    fn hop_id(&mut self) -> Result<HopId, Malformed> {
        let id = u16::try_from(self.number()?);
        id.map(HopId).map_err(|_| Malformed("a hop has more than 16 bits"))
    }

    fn frame(&mut self) -> Result<FrameId, Malformed> {
        Ok(FrameId::new(self.hop_id()?, self.small()?, self.number()?))
    }

    fn thread(&mut self) -> Result<ThreadId, Malformed> {
        Ok(ThreadId {
            pid: self.small()?,
            tid: self.small()?,
        })
    }

    fn share(&mut self) -> Result<Option<f64>, Malformed> {
        if !self.flag()? {
            return Ok(None);
        }
        let bytes = self.fields.bytes(8)?.try_into();
        let bytes = bytes.map_err(|_| Malformed("a share is cut short"))?;
        Ok(Some(f64::from_bits(u64::from_le_bytes(bytes))))
    }

    /// Reads the wall-clock time of an anchor.
    pub(super) fn wall_ns(&mut self) -> Result<u64, Malformed> {
        self.number()
    }

    /// Reads a record of `standing`, which starts with its kind.
    pub(super) fn standing(&mut self) -> Result<Option<What<'b>>, Malformed> {
        let number = self.fields.byte()?;
        self.what(number)
    }

    /// Reads a record of that kind; `None` if the kind is unknown.
    pub(super) fn what(&mut self, number: u8) -> Result<Option<What<'b>>, Malformed> {
        Ok(Some(match number {
            op::ENGINE => What::Engine(self.engine()?),
            op::HOP => What::Hop(self.hop()?),
            op::UNDECODED => What::Undecoded(Undecoded {
                id: self.frame()?,
                bytes: self.number()?,
                reason: self.text()?,
            }),
            op::SEND_WAIT => What::SendWait(SendWait {
                hop: self.hop_id()?,
                ns: self.number()?,
            }),
            op::CPU => What::Cpu(self.cpu()?),
            op::QUEUE => What::Queue(QueueSample {
                hop: self.text()?,
                receive_bytes: self.maybe()?,
                send_bytes: self.maybe()?,
            }),
            op::HOT => What::Stack(StackSample {
                thread: self.thread()?,
                role: self.text()?,
                function: self.text()?,
                file: self.text()?,
                interval_ns: self.number()?,
                samples: self.small()?,
                total: self.small()?,
                own: self.small()?,
                gil: self.maybe()?,
            }),
            op::STAGE => What::Stage(Stage {
                rid: self.text()?,
                name: self.text()?,
                by: self.text()?,
                tokens: self.maybe()?,
                pending: self.maybe()?,
            }),
            op::LOGGED_STATE => What::LoggedState(LoggedState {
                by: self.text()?,
                states: self.maybe()?,
                rids: self.maybe()?,
                recv_wait_ns: self.maybe()?,
                more: self.maybe::<u8>()?.map(|more| more != 0),
                cpu: self.share()?,
                cpu_system: self.share()?,
            }),
            op::MERGED => What::Merged(Merged {
                rid: self.text()?,
                chunks: self.small()?,
                by: self.text()?,
            }),
            op::ANSWERED => What::Answered(Answer {
                rid: self.text()?,
                tokens: self.maybe()?,
                completion_tokens: self.maybe()?,
                end: self.code::<AnswerEnd>()?,
                short_writes: self.small()?,
                unacknowledged: self.maybe()?,
            }),
            op::LOST => What::Missed(Missed::new(
                self.maybe()?.map(HopId),
                self.number()?,
                self.code::<MissedCause>()?,
            )),
            _ => return Ok(None),
        }))
    }

    fn engine(&mut self) -> Result<Engine<'b>, Malformed> {
        let known = self.flag()?;
        let version = self.text()?;
        Ok(Engine {
            version: known.then_some(version),
            mode: self.maybe_code::<Mode>()?,
            waiter: self.maybe_code::<Waiter>()?,
            turnaround: self.maybe()?,
            // Omitted if unknown.
            name: if self.fields.is_empty() {
                None
            } else {
                Some(self.text()?)
            },
        })
    }

    fn hop(&mut self) -> Result<Hop<'b>, Malformed> {
        let (id, name, endpoint) = (self.hop_id()?, self.text()?, self.text()?);
        let worker = self.maybe()?;
        let flags = self.number()?;
        let flag = |place: u32| flags >> place & 1 != 0;
        Ok(Hop {
            endpoint,
            worker,
            origin: flag(0),
            last: flag(1),
            ..Hop::new(
                id,
                name,
                Capabilities {
                    sent: flag(2),
                    forwarded: flag(3),
                    received: flag(4),
                    processed: flag(5),
                    delivered: flag(6),
                },
            )
        })
    }

    fn cpu(&mut self) -> Result<CpuSample<'b>, Malformed> {
        Ok(CpuSample {
            thread: self.thread()?,
            role: self.text()?,
            name: self.text()?,
            part: self.code::<ThreadPart>()?,
            interval_ns: self.number()?,
            on_ns: self.number()?,
            wait_ns: self.maybe()?,
            throttled_ns: self.maybe()?,
            poll: if self.flag()? {
                Some(PollUse {
                    interval_ns: self.number()?,
                    polled_ns: self.number()?,
                    wakeups: self.number()?,
                })
            } else {
                None
            },
            // Omitted if unknown.
            away: if self.fields.is_empty() {
                None
            } else {
                Some(Away {
                    state: self.code::<AwayState>()?,
                    place: self.text()?,
                })
            },
        })
    }
}
