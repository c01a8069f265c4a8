use super::*;

#[test]
fn a_second_at_the_limits_takes_seven_kilobytes() {
    // Without the buckets of its durations.
    let bytes =
        size_of::<SlotValues>() + MAX_HOPS * size_of::<HopSlot>() + 2 * MAX_THREADS * size_of::<Option<TimeUse>>();
    assert_eq!(bytes, 7_368);
}
