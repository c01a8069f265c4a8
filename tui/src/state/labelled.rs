//! Enums whose variants have a label on the screen.

/// Defines an enum whose variants have a label: `ALL` lists them in order, `label` is the label on the screen.
macro_rules! labelled {
    ($(#[$about:meta])* $vis:vis $name:ident { $($(#[$what:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[$what])* $variant,)+ }

        impl $name {
            /// Every variant, in order.
            $vis const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// Label on the screen.
            $vis fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }
        }
    };
}
