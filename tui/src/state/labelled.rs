//! Enums whose variants have a label on the screen.

/// Defines an enum whose variants have a label: `ALL` lists them in order, `word` is the label on the screen.
macro_rules! labelled {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$what])* $variant,)+ }

        impl $name {
            /// Every variant, in order.
            pub(crate) const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Label on the screen.
            pub(crate) fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}
