//! Both ends over real sockets: a published and watched run, slow watchers, and invalid peers.

mod attacked;
mod both;

use std::thread;
use std::time::Duration;

use feed::Key;

use both::{Source, Watched, finish, options, report};

fn watched_to_the_end(key: Option<&Key>) {
    let mut source = Source::new(options(key.cloned()));
    (0..50).for_each(|_| source.step(20));
    let mut early = source.watch(key.cloned());
    early.until("the first state", Some(&mut source), |w| w.analysis.is_some());
    for _ in 0..30 {
        source.step(20);
        thread::sleep(Duration::from_millis(5));
        early.take();
    }
    let mut late = source.watch(key.cloned());
    late.until("the state for who is late", Some(&mut source), |w| w.analysis.is_some());
    early.take();
    assert_eq!(source.publisher.status().watchers, 2);
    let (publisher, analysis) = (source.publisher, source.analysis);
    let at_the_source = report(&analysis);
    let ends = thread::spawn(move || finish(publisher, &analysis));
    for watched in [&mut early, &mut late] {
        watched.until("the end", None, |w| w.ended);
        assert_eq!((watched.starts, watched.reader.lost()), (1, 0));
        assert_eq!(watched.analysis.as_ref().map(report).as_ref(), Some(&at_the_source));
    }
    assert_eq!(ends.join().expect("the end").dropped, 0);
}

#[test]
fn whoever_comes_and_whenever_sees_what_the_source_sees() {
    watched_to_the_end(None);
}

#[test]
fn and_so_does_who_has_the_key() {
    watched_to_the_end(Some(&Key::new([9; 32])));
}

#[test]
fn who_has_another_key_or_none_learns_nothing_and_is_told_why() {
    let mut source = Source::new(options(Some(Key::new([9; 32]))));
    for (key, word) in [(Some(Key::new([8; 32])), "key"), (None, "--feed-key")] {
        let mut watched = source.watch(key);
        watched.until("the refusal", Some(&mut source), |w| !w.down.is_empty());
        assert!(
            watched.analysis.is_none() && watched.down[0].contains(word),
            "{:?}",
            watched.down
        );
    }
    let mut open = Source::new(options(None));
    let mut keyed = open.watch(Some(Key::new([9; 32])));
    keyed.until("the refusal", Some(&mut open), |w| !w.down.is_empty());
    assert!(keyed.analysis.is_none());
}

/// A watcher that has stopped reading and whose source has dropped messages. Only a new state can bring it the records published last.
fn left_behind() -> (Source, Watched) {
    let mut source = Source::new(options(None));
    let mut watched = source.watch(None);
    watched.until("the first state", Some(&mut source), |w| w.analysis.is_some());
    let mut steps = 0;
    while source.publisher.status().dropped == 0 {
        source.babble();
        source.step(2);
        // Give the feed's thread time to run.
        thread::sleep(Duration::from_millis(1));
        steps += 1;
        assert!(steps < 10_000, "{:?}", source.publisher.status());
    }
    (0..20).for_each(|_| source.step(2));
    (source, watched)
}

/// A stopped watcher costs the source no more than its queue, and continues from a state when it reads again.
#[test]
fn a_watcher_that_stands_still_is_left_behind_and_catches_up() {
    let (mut source, mut watched) = left_behind();
    watched.until("the next state", Some(&mut source), |w| w.starts >= 2);
    assert!(watched.reader.lost() > 0, "the hole is known");
    let (publisher, analysis) = (source.publisher, source.analysis);
    let at_the_source = report(&analysis);
    let ends = thread::spawn(move || finish(publisher, &analysis));
    watched.until("the end", None, |w| w.ended);
    assert_eq!(watched.analysis.as_ref().map(report), Some(at_the_source));
    assert!(ends.join().expect("the end").dropped > 0);
}

/// Without the end message, a watcher that runs without a time limit would wait for ever.
#[test]
fn a_watcher_that_is_behind_when_the_run_ends_has_the_last_state_and_the_end() {
    let (source, mut watched) = left_behind();
    assert_eq!(watched.starts, 1);
    let at_the_source = report(&source.analysis);
    let (publisher, analysis) = (source.publisher, source.analysis);
    let ends = thread::spawn(move || finish(publisher, &analysis));
    watched.until("the end", None, |w| w.ended);
    assert_eq!(watched.starts, 2);
    assert_eq!(watched.analysis.as_ref().map(report), Some(at_the_source));
    assert!(watched.reader.lost() > 0, "the hole is known");
    assert!(ends.join().expect("the end").dropped > 0);
}
