//! Rare records: fields in sequence after their length and their number of new texts. New fields are only added at the end of a record; a
//! reader skips fields it does not know.

use trace::clock::MonoNs;
use trace::event::{
    Answer, AnswerContent, AnswerEnd, ArgumentsPart, Away, Capabilities, CpuSample, Engine, FrontendWait, Hop,
    LoggedState, Merged, Missed, PollUse, QueueSample, SendWait, StackSample, Stage, ToolCallOutcome, ToolCalls,
    Undecoded, UnjudgedReason, What,
};
use trace::id::{FrameId, HopId, ThreadId};

use super::bytes::{Code, Cursor, Malformed, Put};
use super::codes::op;
use super::columns::Columns;
use super::text::{Reading, Texts};

/// A field of a record.
trait Field<'b>: Sized {
    fn write(&self, to: &mut Writing<'_>);
    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed>;
}

/// Kinds of records.
macro_rules! records {
    ($($op:ident $variant:ident)+) => {
        impl Writing<'_> {
            /// Writes the fields of a rare record and returns its kind; `None` for a columnar one.
            pub(super) fn what(&mut self, what: &What<'_>) -> Option<u8> {
                match what {
                    $(What::$variant(record) => {
                        record.write(self);
                        Some(op::$op)
                    })+
                    What::Sent(_) | What::Received(_) | What::Processed(_) | What::Delivered(_) => None,
                }
            }
        }

        impl<'b> RareReader<'b> {
            /// Reads a record of that kind; `None` if the kind is unknown.
            pub(super) fn what(&mut self, kind: u8) -> Result<Option<What<'b>>, Malformed> {
                Ok(Some(match kind {
                    $(op::$op => What::$variant(Field::read(self)?),)+
                    _ => return Ok(None),
                }))
            }
        }
    };
}

records! {
    ENGINE Engine
    HOP Hop
    UNDECODED Undecoded
    SEND_WAIT SendWait
    CPU Cpu
    QUEUE Queue
    HOT Stack
    STAGE Stage
    LOGGED_STATE LoggedState
    MERGED Merged
    ANSWERED Answered
    FRONTEND_WAIT FrontendWait
    LOST Missed
}

/// Structs, field by field in the order of writing.
macro_rules! structs {
    ($($type:ty { $($field:tt),+ })+) => {$(
        impl<'b> Field<'b> for $type {
            fn write(&self, to: &mut Writing<'_>) {
                $(self.$field.write(to);)+
            }

            fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
                Ok(Self { $($field: Field::read(from)?),+ })
            }
        }
    )+};
}

structs! {
    Undecoded<'b> { id, bytes, reason, forwarded }
    SendWait { hop, ns }
    CpuSample<'b> { thread, role, name, part, interval_ns, on_ns, wait_ns, throttled_ns, poll, away }
    QueueSample<'b> { hop, receive_bytes, send_bytes }
    StackSample<'b> { thread, role, function, file, interval_ns, samples, total, own, gil }
    Stage<'b> { rid, name, by, tokens, pending, gap_ns }
    LoggedState<'b> { by, states, rids, recv_wait_ns, more, cpu, cpu_system, unanswered_since }
    Merged<'b> { rid, chunks, by }
    AnswerContent { form, events, event_tokens_max, lacks_end }
    FrontendWait<'b> { rid, first_token_ns, last_token_ns }
    Missed { hop, count, cause }
    Away<'b> { state, place }
    PollUse { interval_ns, polled_ns, wakeups }
    FrameId { hop, lane, seq }
    ThreadId { pid, tid }
    HopId { 0 }
    MonoNs { 0 }
}

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
        Self { texts, columns, fields, new: 0 }
    }

    /// Appends the record to `rare`, or to `standing`.
    pub(super) fn end(self, standing: bool) {
        let column = if standing { &mut self.columns.standing } else { &mut self.columns.rare };
        column.number(self.fields.len() as u64);
        column.number(self.new);
        column.extend_from_slice(self.fields);
    }

    pub(super) fn number(&mut self, value: u64) {
        self.fields.number(value);
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

    /// Reads the wall-clock time of an anchor.
    pub(super) fn wall_ns(&mut self) -> Result<u64, Malformed> {
        self.fields.number()
    }

    /// Reads a record of `standing`, which starts with its kind.
    pub(super) fn standing(&mut self) -> Result<Option<What<'b>>, Malformed> {
        let kind = self.fields.byte()?;
        self.what(kind)
    }
}

/// Numbers, and numbers that may be unknown.
macro_rules! numbers {
    ($($type:ty)+) => {$(
        impl Field<'_> for $type {
            fn write(&self, to: &mut Writing<'_>) {
                to.number((*self).into());
            }

            fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
                sized(from.fields.number()?)
            }
        }

        impl Field<'_> for Option<$type> {
            fn write(&self, to: &mut Writing<'_>) {
                to.fields.maybe(self.map(Into::into));
            }

            fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
                from.fields.maybe()?.map(sized).transpose()
            }
        }
    )+};
}

numbers! { u8 u16 u32 u64 }

fn sized<T: TryFrom<u64>>(number: u64) -> Result<T, Malformed> {
    T::try_from(number).map_err(|_| Malformed("a number is too large for its field"))
}

impl<'b> Field<'b> for &'b str {
    fn write(&self, to: &mut Writing<'_>) {
        let (place, new) = to.texts.place(self, to.columns);
        to.new += u64::from(new);
        place.write(to);
    }

    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
        let place = Field::read(from)?;
        from.texts.get(place)
    }
}

impl<T: Code> Field<'_> for T {
    fn write(&self, to: &mut Writing<'_>) {
        to.fields.push(self.code());
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        T::of(from.fields.byte()?)
    }
}

impl Field<'_> for bool {
    fn write(&self, to: &mut Writing<'_>) {
        to.fields.push(u8::from(*self));
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        Ok(from.fields.byte()? != 0)
    }
}

impl Field<'_> for f64 {
    fn write(&self, to: &mut Writing<'_>) {
        to.fields.extend_from_slice(&self.to_bits().to_le_bytes());
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        let bytes = from.fields.bytes(8)?.try_into();
        let bytes = bytes.map_err(|_| Malformed("a share is cut short"))?;
        Ok(Self::from_bits(u64::from_le_bytes(bytes)))
    }
}

impl<T: Code> Field<'_> for Option<T> {
    fn write(&self, to: &mut Writing<'_>) {
        self.map(T::code).write(to);
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        Option::<u8>::read(from)?.map(T::of).transpose()
    }
}

/// Optional values: written as an optional number, after a flag, or, as the last of their record, omitted if unknown.
macro_rules! options {
    (numbers: $($type:ty as $number:ty: $to:expr, $of:expr;)+) => {$(
        impl Field<'_> for Option<$type> {
            fn write(&self, to: &mut Writing<'_>) {
                self.map($to).write(to);
            }

            fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
                Ok(Option::<$number>::read(from)?.map($of))
            }
        }
    )+};
    (flagged: $($type:ty;)+) => {$(
        impl Field<'_> for Option<$type> {
            fn write(&self, to: &mut Writing<'_>) {
                self.is_some().write(to);
                if let Some(value) = self {
                    value.write(to);
                }
            }

            fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
                bool::read(from)?.then(|| Field::read(from)).transpose()
            }
        }
    )+};
    (last: $($type:ty;)+) => {$(
        impl<'b> Field<'b> for Option<$type> {
            fn write(&self, to: &mut Writing<'_>) {
                if let Some(value) = self {
                    value.write(to);
                }
            }

            fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
                (!from.fields.is_empty()).then(|| Field::read(from)).transpose()
            }
        }
    )+};
}

options! { numbers: HopId as u16: |hop| hop.0, HopId; bool as u8: u8::from, |flag| flag != 0; }
options! { flagged: PollUse; f64; }
options! { last: MonoNs; &'b str; Away<'b>; ToolCalls; }

/// Added to the code of an answer's end if its content follows, from 2.9 on.
const WITH_CONTENT: u8 = 0x80;

impl<'b> Field<'b> for Answer<'b> {
    fn write(&self, to: &mut Writing<'_>) {
        self.rid.write(to);
        self.tokens.write(to);
        self.completion_tokens.write(to);
        to.fields.push(self.end.code() | if self.content.is_some() { WITH_CONTENT } else { 0 });
        self.short_writes.write(to);
        self.unacknowledged.write(to);
        if let Some(content) = &self.content {
            content.write(to);
        }
        self.tool_calls.write(to);
    }

    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
        let mut answer = Answer::new(Field::read(from)?, Field::read(from)?, Field::read(from)?);
        let end = from.fields.byte()?;
        answer.end = AnswerEnd::of(end & !WITH_CONTENT)?;
        answer.short_writes = Field::read(from)?;
        answer.unacknowledged = Field::read(from)?;
        if end & WITH_CONTENT != 0 {
            answer.content = Some(Field::read(from)?);
        }
        answer.tool_calls = Field::read(from)?;
        Ok(answer)
    }
}

impl Field<'_> for ToolCalls {
    fn write(&self, to: &mut Writing<'_>) {
        self.calls.write(to);
        self.call.write(to);
        self.outcome.write(to);
        self.finish.write(to);
        self.part.map(|part| part.at).write(to);
        if let Some(part) = self.part {
            part.chars.write(to);
            part.tokens[0].write(to);
            part.tokens[1].write(to);
            part.whole_chunks.write(to);
        }
        // From 2.7 on.
        self.absent.write(to);
        self.events.write(to);
        if let Some(part) = self.part {
            part.events[0].write(to);
            part.events[1].write(to);
            part.whole_events.write(to);
        }
        // From 2.8 on.
        self.reason.write(to);
    }

    fn read(from: &mut RareReader<'_>) -> Result<Self, Malformed> {
        let mut calls = Self {
            calls: Field::read(from)?,
            absent: 0,
            call: Field::read(from)?,
            outcome: Field::read(from)?,
            reason: None,
            finish: Field::read(from)?,
            events: 0,
            part: None,
        };
        if let Some(at) = Field::read(from)? {
            calls.part = Some(ArgumentsPart {
                at,
                chars: Field::read(from)?,
                tokens: [Field::read(from)?, Field::read(from)?],
                whole_chunks: Field::read(from)?,
                events: [0, 0],
                whole_events: false,
            });
        }
        if !from.fields.is_empty() {
            (calls.absent, calls.events) = (Field::read(from)?, Field::read(from)?);
            if let Some(part) = &mut calls.part {
                part.events = [Field::read(from)?, Field::read(from)?];
                part.whole_events = Field::read(from)?;
            }
        }
        calls.reason = if from.fields.is_empty() {
            (calls.outcome == ToolCallOutcome::Unjudged).then_some(UnjudgedReason::Differs)
        } else {
            Field::read(from)?
        };
        Ok(calls)
    }
}

impl<'b> Field<'b> for Engine<'b> {
    fn write(&self, to: &mut Writing<'_>) {
        self.version.is_some().write(to);
        self.version.unwrap_or("").write(to);
        self.mode.write(to);
        self.waiter.write(to);
        self.turnaround.write(to);
        self.name.write(to);
    }

    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
        let known = bool::read(from)?;
        Ok(Self {
            version: Some(Field::read(from)?).filter(|_| known),
            mode: Field::read(from)?,
            waiter: Field::read(from)?,
            turnaround: Field::read(from)?,
            name: Field::read(from)?,
        })
    }
}

impl<'b> Field<'b> for Hop<'b> {
    fn write(&self, to: &mut Writing<'_>) {
        self.id.write(to);
        self.ends.to_string().as_str().write(to);
        self.endpoint.write(to);
        self.worker.write(to);
        let flags = [
            self.origin,
            self.last,
            self.capabilities.sent,
            // Whether forwards have records of their own: files before 2.6.
            false,
            self.capabilities.received,
            self.capabilities.processed,
            self.capabilities.delivered,
            self.capabilities.forwarded,
        ];
        to.number(flags.iter().rev().fold(0, |all, &flag| all << 1 | u64::from(flag)));
    }

    fn read(from: &mut RareReader<'b>) -> Result<Self, Malformed> {
        let (id, name, endpoint) = (Field::read(from)?, <&str>::read(from)?, Field::read(from)?);
        let worker = Field::read(from)?;
        let flags = from.fields.number()?;
        let flag = |place: u32| flags >> place & 1 != 0;
        Ok(Self {
            id,
            ends: name.into(),
            endpoint,
            worker,
            origin: flag(0),
            last: flag(1),
            capabilities: Capabilities {
                sent: flag(2),
                forwarded: flag(7),
                received: flag(4),
                processed: flag(5),
                delivered: flag(6),
            },
        })
    }
}
