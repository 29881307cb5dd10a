//! [`one_or_many!`]: bodies that hold one item, or many under a name.

/// What a body holds.
#[derive(Debug)]
pub(crate) enum OneOrMany<T> {
    /// One item, as the body itself.
    One(T),
    /// Items under their name.
    Many(Vec<T>),
}

/// Makes the type of an item, and that of a body with the same fields or a list of items. The body gets `split`, which answers 400
/// `validation_failed` when both are given.
macro_rules! one_or_many {
    (
        $(#[$about_body:meta])*
        struct $body:ident { $list:ident: [$noun:literal; $max:ident] }

        $(#[$about_item:meta])*
        struct $item:ident { $($(#[$about:meta])* $field:ident: $type:ty,)+ }
    ) => {
        #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about_item])*
        struct $item { $($(#[$about])* $field: $type,)+ }

        #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about_body])*
        pub(super) struct $body {
            #[schemars(length(min = 1, max = $max))]
            $list: Option<Vec<$item>>,
            $($(#[$about])* $field: $type,)+
        }

        impl $body {
            fn split(self) -> Result<$crate::pipeline::OneOrMany<$item>, $crate::pipeline::error::ApiError> {
                use $crate::pipeline::{OneOrMany, error::ApiError};
                match self.$list {
                    None => Ok(OneOrMany::One($item { $($field: self.$field,)+ })),
                    Some(_) if $(self.$field.is_some())||+ => {
                        let detail = concat!("send either one ", $noun, " or a list of them");
                        Err(ApiError::invalid(stringify!($list), "ambiguous", detail))
                    }
                    Some(items) => Ok(OneOrMany::Many(items)),
                }
            }
        }
    };
}
pub(crate) use one_or_many;
