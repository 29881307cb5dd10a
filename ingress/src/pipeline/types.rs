//! JSON Schemas of request and answer types: no object accepts unknown fields.

use schemars::{JsonSchema, generate::SchemaSettings};
use schemas::catalog::normalized;
use serde_json::{Map, Value, json};

use super::schema::{Schema, SchemaField};

pub(crate) fn body<T: JsonSchema>() -> Schema {
    generate_schema::<T>(SchemaSettings::draft2020_12().for_deserialize())
}

/// The schema of an answer. `ok: true` is added, as `ApiReply` does, unless the type has its own `ok`.
pub(crate) fn answer<T: JsonSchema>() -> Schema {
    let mut schema = part::<T>();
    if schema.components.get(&*T::schema_name()).is_none_or(|named| named["properties"].get("ok").is_none()) {
        let ok = Schema::raw(json!({"type": "boolean", "const": true}));
        schema.add_fields(&[SchemaField { name: "ok".to_owned(), schema: ok, required: true }]);
    }
    schema
}

/// The schema of a part of an answer.
pub(crate) fn part<T: JsonSchema>() -> Schema {
    generate_schema::<T>(SchemaSettings::draft2020_12().for_serialize())
}

/// The fields of a type that reads a query, where nothing is null.
pub(crate) fn query<T: JsonSchema>() -> Vec<SchemaField> {
    let Schema { value: schema, components } = body::<T>();
    let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let Some(query) = components.get(name) else { return Vec::new() };
    let must =
        |name: &String| query["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name));
    let others =
        || components.iter().filter(|(other, _)| *other != name).map(|(name, value)| (name.clone(), value.clone()));
    let fields = query["properties"].as_object().into_iter().flatten();
    fields
        .map(|(name, value)| {
            let mut value = value.clone();
            leave_out_null(&mut value);
            SchemaField {
                name: name.clone(),
                schema: Schema { value, components: others().collect() },
                required: must(name),
            }
        })
        .collect()
}

fn generate_schema<T: JsonSchema>(settings: SchemaSettings) -> Schema {
    let settings = settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let schema = generator.subschema_for::<T>().to_value();
    let components = generator.take_definitions(true);
    Schema {
        value: normalized_schema(schema),
        components: components.into_iter().map(|(name, value)| (name, normalized_schema(value))).collect(),
    }
}

fn normalized_schema(schema: Value) -> Value {
    let mut schema = normalized(schema);
    shape(&mut schema);
    schema
}

fn shape(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            merge_string_enum(object);
            // The fields of a type may be called `properties`, or `type`, themselves: then they are schemas.
            let is_typed = object.get("type").is_some_and(|kind| kind.is_string() || kind.is_array());
            if is_typed && object.contains_key("properties") && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".to_owned(), json!(false));
            }
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            let format = object.get("format").and_then(Value::as_str);
            if matches!(format, Some("double" | "float" | "uint")) {
                object.remove("format");
            }
            admit_null(object);
            object.values_mut().for_each(shape);
        }
        Value::Array(items) => items.iter_mut().for_each(shape),
        _ => {}
    }
}

/// Turns alternatives of string constants into one `enum`. Their descriptions go into the description.
fn merge_string_enum(object: &mut Map<String, Value>) {
    let Some(alternatives) = object.get("oneOf").and_then(Value::as_array) else { return };
    if !alternatives.iter().all(|one| one["type"] == "string" && (one["const"].is_string() || one["enum"].is_array())) {
        return;
    }
    let mut words = Vec::new();
    let mut about: Vec<String> =
        object.get("description").and_then(Value::as_str).map(str::to_owned).into_iter().collect();
    for one in alternatives {
        words.extend(one["enum"].as_array().cloned().unwrap_or_else(|| vec![one["const"].clone()]));
        if let (Some(word), Some(line)) = (one["const"].as_str(), one["description"].as_str()) {
            about.push(format!("`{word}`: {line}"));
        }
    }
    object.remove("oneOf");
    object.insert("type".to_owned(), json!("string"));
    object.insert("enum".to_owned(), json!(words));
    if !about.is_empty() {
        object.insert("description".to_owned(), json!(about.join(" ")));
    }
}

/// Adds null to the `enum` of a nullable field.
fn admit_null(object: &mut Map<String, Value>) {
    let nullable =
        object.get("type").and_then(Value::as_array).is_some_and(|types| types.iter().any(|kind| kind == "null"));
    if let (true, Some(Value::Array(words))) = (nullable, object.get_mut("enum"))
        && !words.contains(&Value::Null)
    {
        words.push(Value::Null);
    }
}

fn leave_out_null(schema: &mut Value) {
    let is_null = |alternative: &Value| alternative["type"] == "null";
    let alternatives = schema.get_mut("anyOf").and_then(Value::as_array_mut);
    if let Some(alternatives) = alternatives.filter(|alternatives| alternatives.iter().any(is_null)) {
        alternatives.retain(|alternative| !is_null(alternative));
        if let [only] = alternatives.as_slice() {
            let mut only = only.clone();
            if let Some(about) = schema.get("description") {
                only["description"] = about.clone();
            }
            *schema = only;
        }
    }
    if let Some([kind, null]) = schema["type"].as_array().map(Vec::as_slice)
        && null == "null"
    {
        schema["type"] = kind.clone();
        if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            words.retain(|word| !word.is_null());
        }
    }
}

/// In a group of [`either`]: the fields that no group requires.
pub(crate) const OTHERS: &[&str] = &["*"];

/// For `#[schemars(transform = either(…))]` at a type of which a caller gives one of several groups of fields: of each group, those that
/// must be there, and those that may.
pub(crate) fn either(
    groups: &'static [(&'static [&'static str], &'static [&'static str])],
) -> impl FnMut(&mut schemars::Schema) {
    move |schema| {
        let fields = schema.remove("properties").unwrap_or_default();
        let required = |name: &str| groups.iter().any(|(must, _)| must.contains(&name));
        let names = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let others: Vec<&str> = names.filter(|name| !required(name)).collect();
        let group = |(must, may): &(&[&str], &[&str])| {
            let given = must.iter().map(|name| {
                let mut field = fields[*name].clone();
                leave_out_null(&mut field);
                ((*name).to_owned(), field)
            });
            let may = if *may == OTHERS { others.as_slice() } else { *may };
            let may = may.iter().map(|name| ((*name).to_owned(), fields[*name].clone()));
            let properties: Map<String, Value> = given.chain(may).collect();
            json!({"type": "object", "additionalProperties": false, "properties": properties, "required": must})
        };
        let alternatives: Vec<Value> = groups.iter().map(group).collect();
        for keyword in ["type", "required", "additionalProperties"] {
            schema.remove(keyword);
        }
        schema.insert("anyOf".to_owned(), alternatives.into());
    }
}

/// For `#[schemars(transform = without(…))]`: leaves out fields that another use of the type has.
pub(crate) fn without(names: &'static [&'static str]) -> impl FnMut(&mut schemars::Schema) {
    move |schema| {
        if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            fields.retain(|name, _| !names.contains(&name.as_str()));
        }
    }
}

/// For `#[schemars(transform = counts)]` at a type whose numbers count something: none is below 0.
pub(crate) fn counts(schema: &mut schemars::Schema) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(|fields| fields.values_mut()).filter_map(Value::as_object_mut) {
        let kind = field.get("type").map(|kind| kind.get(0).unwrap_or(kind));
        if kind.is_some_and(|kind| kind == "integer" || kind == "number") {
            field.insert("minimum".to_owned(), json!(0));
        }
    }
}

/// Makes types that only say what a text may be, for `#[schemars(with = "…")]` at the field that holds one.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident $(<$max:ident>)? = $schema:expr,)+) => {$(
        $(#[$doc])*
        pub(crate) enum $name $(<const $max: usize>)? {}

        impl $(<const $max: usize>)? schemars::JsonSchema for $name $(<$max>)? {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema.try_into().unwrap_or_default()
            }
        }
    )+};
}
pub(crate) use texts;

texts! {
    /// A text of at most so many characters that is not blank.
    Words<MAX> = json!({"type": "string", "minLength": 1, "maxLength": MAX, "pattern": r"\S"}),
    /// One line that is not blank.
    Name<MAX> = json!({
        "type": "string", "minLength": 1, "maxLength": MAX,
        "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*$",
    }),
    /// One line, perhaps empty.
    Line<MAX> = json!({"type": "string", "maxLength": MAX, "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$"}),
    /// A postal address: line breaks, but no other control characters.
    PostalAddress = json!({
        "type": "string", "maxLength": super::validate::POSTAL_ADDRESS_MAX,
        "pattern": r"^[^\u0000-\u0009\u000b\u000c\u000e-\u001f\u007f-\u009f]*$",
    }),
    /// An address of a mailbox.
    Email = json!({"type": "string", "maxLength": schemas::address::ADDRESS_MAX_BYTES, "format": "email"}),
}

#[cfg(test)]
#[allow(dead_code)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::pipeline::Patch;

    /// A word.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        /// The first.
        One,
        /// The second.
        Two,
    }

    #[derive(Serialize, JsonSchema)]
    struct Shown {
        word: Option<Word>,
        count: u32,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Asked {
        /// Its name.
        #[schemars(with = "Name<10>")]
        name: Option<String>,
        #[schemars(length(max = 5))]
        note: Option<String>,
        #[serde(default)]
        state: Patch<Word>,
        #[serde(default)]
        #[schemars(extend("enum" = ["a", "b"]))]
        kind: Option<String>,
    }

    #[test]
    fn an_answer_has_all_its_fields_and_no_others() {
        let Schema { value, components } = answer::<Shown>();
        assert_eq!(value, json!({"$ref": "#/components/schemas/Shown"}));
        let word = json!({"anyOf": [{"$ref": "#/components/schemas/Word"}, {"type": "null"}]});
        assert_eq!(
            components["Shown"],
            json!({
                "type": "object", "additionalProperties": false, "required": ["ok", "word", "count"],
                "properties": {
                    "ok": {"type": "boolean", "const": true}, "word": word, "count": {"type": "integer", "minimum": 0},
                },
            })
        );
        let about = "A word. `one`: The first. `two`: The second.";
        assert_eq!(components["Word"], json!({"type": "string", "enum": ["one", "two"], "description": about}));
    }

    #[derive(Serialize, JsonSchema)]
    struct State {
        ok: bool,
    }

    #[test]
    fn an_answer_with_its_own_ok_keeps_it() {
        let state = &answer::<State>().components["State"];
        assert_eq!((&state["properties"]["ok"], &state["required"]), (&json!({"type": "boolean"}), &json!(["ok"])));
    }

    #[test]
    fn a_body_says_what_must_be_there_and_what_may_be_null() {
        let asked = &body::<Asked>().components["Asked"];
        assert_eq!(asked["required"], json!(["name"]));
        assert_eq!(
            (&asked["properties"]["name"]["type"], &asked["properties"]["name"]["maxLength"]),
            (&json!("string"), &json!(10))
        );
        assert_eq!(asked["properties"]["name"]["description"], "Its name.");
        assert_eq!(asked["properties"]["note"], json!({"type": ["string", "null"], "maxLength": 5}));
        assert_eq!(asked["properties"]["state"]["anyOf"][1], json!({"type": "null"}));
        assert_eq!(asked["properties"]["kind"], json!({"type": ["string", "null"], "enum": ["a", "b", null]}));
        assert_eq!(asked["additionalProperties"], false);
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[schemars(transform = either(&[(&["id"], &["why"]), (&["email"], &[])]))]
    struct Named {
        id: Option<u8>,
        email: Option<String>,
        why: Option<String>,
    }

    #[test]
    fn a_caller_gives_one_group_of_fields() {
        let named = &body::<Named>().components["Named"];
        let group = |place: usize| (&named["anyOf"][place]["properties"], &named["anyOf"][place]["required"]);
        let why = json!({"type": ["string", "null"]});
        let id = json!({"type": "integer", "minimum": 0, "maximum": 255});
        assert_eq!(group(0), (&json!({"id": id, "why": why}), &json!(["id"])));
        assert_eq!(group(1), (&json!({"email": {"type": "string"}}), &json!(["email"])));
        assert!(named.get("type").is_none() && named.get("properties").is_none(), "{named}");
    }

    #[test]
    fn a_query_has_no_null() {
        let fields = query::<Asked>();
        let state = fields.iter().find(|field| field.name == "state").map(|field| field.schema.value.clone());
        assert_eq!(state, Some(json!({"$ref": "#/components/schemas/Word"})));
        let kind = fields.iter().find(|field| field.name == "kind").map(|field| field.schema.value.clone());
        assert_eq!(kind, Some(json!({"type": "string", "enum": ["a", "b"]})));
        assert!(fields.iter().all(|field| field.required == (field.name == "name")));
    }
}
