//! Both ends over real sockets: a published and watched run, slow watchers, and invalid peers.

mod fixture;
mod hostile;

use std::thread;
use std::time::Duration;

use feed::Key;

use fixture::{Source, Watched, options};

fn watch_to_the_end(key: Option<&Key>) {
    let mut source = Source::new(options(key.cloned()));
    (0..50).for_each(|_| source.step(20));
    let mut early = source.joined(key.cloned());
    for _ in 0..30 {
        source.step(20);
        thread::sleep(Duration::from_millis(5));
        early.receive();
    }
    let mut late = source.joined(key.cloned());
    early.receive();
    assert_eq!(source.publisher.status().watchers, 2);
    assert_eq!(source.finish(&mut [&mut early, &mut late]).dropped, 0);
    assert_eq!([early, late].map(|watched| (watched.starts, watched.reader.lost())), [(1, 0); 2]);
}

#[test]
fn watchers_that_join_at_any_time_see_the_source_state() {
    watch_to_the_end(None);
}

#[cfg(feature = "encryption")]
#[test]
fn watchers_with_the_key_see_the_source_state() {
    watch_to_the_end(Some(&Key::new([9; 32])));
}

#[cfg(feature = "encryption")]
#[test]
fn a_watcher_with_a_wrong_or_missing_key_gets_only_the_reason() {
    let mut source = Source::new(options(Some(Key::new([9; 32]))));
    for (key, word) in [(Some(Key::new([8; 32])), "key"), (None, "--feed-key")] {
        let mut watched = source.watch(key);
        watched.wait_until("the refusal", Some(&mut source), |w| !w.down.is_empty());
        assert!(watched.analysis.is_none() && watched.down[0].contains(word), "{:?}", watched.down);
    }
    let mut open = Source::new(options(None));
    let mut keyed = open.watch(Some(Key::new([9; 32])));
    keyed.wait_until("the refusal", Some(&mut open), |w| !w.down.is_empty());
    assert!(keyed.analysis.is_none());
}

/// A watcher that has stopped reading and whose source has dropped messages. It can only receive the latest records with a new state.
fn lagging_watcher() -> (Source, Watched) {
    let mut source = Source::new(options(None));
    let watched = source.joined(None);
    let mut steps = 0;
    while source.publisher.status().dropped == 0 {
        source.send_incompressible();
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
fn a_stalled_watcher_is_skipped_and_catches_up() {
    let (mut source, mut watched) = lagging_watcher();
    watched.wait_until("the next state", Some(&mut source), |w| w.starts >= 2);
    assert!(watched.reader.lost() > 0, "the gap is counted");
    assert!(source.finish(&mut [&mut watched]).dropped > 0);
}

/// Without the end message, a watcher that runs without a time limit would wait for ever.
#[test]
fn a_lagging_watcher_receives_the_last_state_and_the_end() {
    let (source, mut watched) = lagging_watcher();
    assert_eq!(watched.starts, 1);
    assert!(source.finish(&mut [&mut watched]).dropped > 0);
    // Without a CPU for long, it may lag again behind a new state.
    assert!(watched.starts >= 2, "{} states", watched.starts);
    assert!(watched.reader.lost() > 0, "the gap is counted");
}
