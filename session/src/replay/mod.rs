//! Playback loop of a recording, which interleaves records at their original pace with user input.

mod recorded;

pub use recorded::Recorded;

use std::collections::HashSet;
use std::time::Instant;

use trace::MonoNs;
use trace::record::{ReadError, Record, Recording};

use crate::idle;
use crate::observer::{ScreenCommand, Stage};
use crate::playback::Player;
use crate::session::Session;
use crate::signals::Signals;

/// Interval of key reads, in recorded time.
const STEP_NS: u64 = 50_000_000;
/// Maximum number of records analysed again to seek backwards. Beyond it, playback starts at a later block and reports that.
const MAX_REPLAYED: u64 = 8_000_000;

/// Plays the recording until the user quits.
pub fn run(
    recording: &Recording,
    run: &mut Session,
    about: &Recorded<'_>,
    player: &mut Player,
    signals: &Signals,
) -> Result<(), ReadError> {
    let mut from = 0;
    loop {
        let mut stage = Playing {
            run: &mut *run,
            about,
            player: &mut *player,
            signals,
            next: MonoNs::default(),
            known: HashSet::new(),
        };
        let mut reader = recording.reader_at(from);
        while !stage.player.interrupted()
            && let Some(record) = reader.next()?
        {
            stage.enter(&record);
        }
        if !stage.player.interrupted() {
            if stage.player.seeks_finding() {
                stage.run.notify("no further finding before the end".into());
            }
            stage.player.end();
        }
        while !stage.player.interrupted() {
            stage.turn(Stage::Ended);
            stage.run.sleep(idle::LONG);
        }
        if player.leaves() {
            return Ok(());
        }
        if let Some(to) = player.take_restart() {
            from = start(recording, to);
            let since = (from > 0).then(|| recording.blocks()[from].from);
            player.begin(since);
            run.restart();
        }
    }
}

/// Block at which the analysis starts in order to reach `to`: the first one, unless that takes too long.
fn start(recording: &Recording, to: MonoNs) -> usize {
    let blocks = recording.blocks();
    let until = blocks.partition_point(|block| block.from <= to);
    let mut records = 0u64;
    let start = blocks[..until].iter().rposition(|block| {
        records += u64::from(block.records) + u64::from(block.chunks);
        records > MAX_REPLAYED
    });
    start.map_or(0, |block| (block + 1).min(until.saturating_sub(1)))
}

/// One pass through the recording.
struct Playing<'a> {
    run: &'a mut Session,
    about: &'a Recorded<'a>,
    player: &'a mut Player,
    signals: &'a Signals,
    /// Time of the next key read, in recorded time.
    next: MonoNs,
    /// Findings that have started.
    known: HashSet<(&'static str, String)>,
}

impl Playing<'_> {
    fn enter(&mut self, record: &Record<'_>) {
        if self.player.interrupted() {
            return;
        }
        let at = match record {
            Record::Event(event) => {
                self.run.event(event);
                event.at
            }
            Record::Tick(at) => {
                self.run.tick(*at, self.about);
                self.check_findings();
                *at
            }
            _ => return,
        };
        if at < self.next {
            return;
        }
        self.next = MonoNs(at.0.saturating_add(STEP_NS));
        self.player.reached(at);
        loop {
            self.turn(Stage::Running);
            if self.player.interrupted() {
                return;
            }
            match self.player.wait(Instant::now()) {
                Some(time) => self.run.sleep(time),
                None => return,
            }
        }
    }

    /// Stops at a finding that has started since the last check, if the user seeks one.
    fn check_findings(&mut self) {
        let mut begun = None;
        for finding in self.run.analysis().findings() {
            if self.known.insert((finding.kind, finding.verdict.hop.clone())) {
                begun = Some(finding.kind);
            }
        }
        if let Some(kind) = begun
            && self.player.seeks_finding()
        {
            self.player.reached(self.run.analysis().ledger().now());
            self.player.found();
            self.run.notify(format!("{kind} begins here"));
        }
    }

    fn turn(&mut self, stage: Stage) {
        let position = self.player.position(Some(self.about.wall_ns(self.player.at())));
        match self.run.turn(self.about, stage, Some(&position)) {
            ScreenCommand::End => self.player.leave(),
            ScreenCommand::Play(play) => {
                let began: Vec<MonoNs> = self.run.analysis().findings().iter().map(|f| f.began).collect();
                self.player.execute(play, &began);
            }
            _ => {}
        }
        if self.signals.seen() > 0 {
            self.player.leave();
        }
    }
}
