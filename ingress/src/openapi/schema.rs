//! JSON Schemas, built by small functions. Lengths are in characters, as in the checks they mirror.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A JSON Schema (draft 2020-12) and the named schemas it refers to.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    value: Value,
    components: BTreeMap<String, Value>,
}

/// A property of an object, a query parameter or a path parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What its value may be.
    pub schema: Schema,
    /// Whether it must be there.
    pub required: bool,
}

impl Schema {
    /// From JSON, for what the functions below do not say.
    #[must_use]
    pub fn raw(value: Value) -> Self {
        Self { value, components: BTreeMap::new() }
    }

    pub(super) fn from_parts(value: Value, components: BTreeMap<String, Value>) -> Self {
        Self { value, components }
    }

    /// The schema, and the named ones it needs.
    pub(crate) fn into_parts(self) -> (Value, BTreeMap<String, Value>) {
        (self.value, self.components)
    }

    /// Gives it a name in `components/schemas` and answers a reference to it. One name, one schema: a test says so.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let mut components = self.components;
        components.insert(name.to_owned(), self.value);
        Self { value: json!({"$ref": format!("#/components/schemas/{name}")}), components }
    }

    /// Gives it a name if it has none.
    pub(super) fn named_unless_it_is(self, name: impl FnOnce() -> String) -> Self {
        if self.value.get("$ref").is_some() { self } else { self.named(&name()) }
    }

    /// The same, described.
    #[must_use]
    pub fn about(self, description: &str) -> Self {
        self.with("description", description)
    }

    /// The same, with what holds when it is left out.
    #[must_use]
    pub fn default(self, value: impl Into<Value>) -> Self {
        self.with("default", value)
    }

    /// The same, with one more keyword.
    #[must_use]
    pub fn with(mut self, keyword: &str, value: impl Into<Value>) -> Self {
        self.value[keyword] = value.into();
        self
    }

    /// The same, or null.
    #[must_use]
    pub fn or_null(mut self) -> Self {
        match self.value.get("type").cloned() {
            Some(Value::String(kind)) => {
                self.value["type"] = json!([kind, "null"]);
                if let Some(Value::Array(words)) = self.value.get_mut("enum") {
                    words.push(Value::Null);
                }
                self
            }
            _ => Self { value: json!({"anyOf": [self.value, {"type": "null"}]}), components: self.components },
        }
    }

    /// The schema itself.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The named schemas it needs.
    #[must_use]
    pub fn components(&self) -> &BTreeMap<String, Value> {
        &self.components
    }

    /// Adds fields to an object, or to each of several alternatives.
    pub(super) fn add_fields(&mut self, fields: &[Field]) {
        for field in fields {
            self.components.extend(field.schema.components.clone());
        }
        let named = self.value["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        match named.and_then(|name| self.components.get_mut(name)) {
            Some(named) => add_to(named, fields),
            None => add_to(&mut self.value, fields),
        }
    }
}

fn add_to(value: &mut Value, fields: &[Field]) {
    for choice in ["anyOf", "oneOf"] {
        if let Some(Value::Array(alternatives)) = value.get_mut(choice) {
            alternatives.iter_mut().for_each(|alternative| add_to(alternative, fields));
            return;
        }
    }
    let mut properties = Map::new();
    for field in fields {
        properties.insert(field.name.clone(), field.schema.value.clone());
    }
    if let Some(Value::Object(own)) = value.get_mut("properties") {
        properties.append(own);
    }
    value["properties"] = Value::Object(properties);
    let mut required: Vec<Value> =
        fields.iter().filter(|field| field.required).map(|field| json!(field.name)).collect();
    if let Some(Value::Array(own)) = value.get_mut("required") {
        required.append(own);
    }
    value["required"] = Value::Array(required);
}

/// A field that must be there.
#[must_use]
pub fn required(name: &str, schema: Schema) -> Field {
    Field { name: name.to_owned(), schema, required: true }
}

/// A field that may be left out.
#[must_use]
pub fn optional(name: &str, schema: Schema) -> Field {
    Field { name: name.to_owned(), schema, required: false }
}

/// A field that may be left out or null, which means the same. What an `Option` without more reads.
#[must_use]
pub fn nullable(name: &str, schema: Schema) -> Field {
    Field { name: name.to_owned(), schema: schema.or_null(), required: false }
}

/// An object with these fields and no others.
#[must_use]
pub fn object(fields: impl IntoIterator<Item = Field>) -> Schema {
    let mut schema = Schema::raw(json!({"type": "object", "additionalProperties": false}));
    let fields: Vec<Field> = fields.into_iter().collect();
    schema.add_fields(&fields);
    schema
}

/// A success: an object with `ok: true` and these fields.
#[must_use]
pub fn success(fields: impl IntoIterator<Item = Field>) -> Schema {
    object(std::iter::once(required("ok", Schema::raw(json!({"type": "boolean", "const": true})))).chain(fields))
}

/// A success with a page of things and `next_cursor`.
#[must_use]
pub fn page_of(name: &str, item: Schema) -> Schema {
    success([
        required(name, array(item)),
        required("next_cursor", text().or_null().about("Give it as `cursor` for the next page; null at the end.")),
    ])
}

/// An object with any keys and values of one kind.
#[must_use]
pub fn map_of(item: Schema) -> Schema {
    Schema { value: json!({"type": "object", "additionalProperties": item.value}), components: item.components }
}

/// An object with anything in it.
#[must_use]
pub fn any_object() -> Schema {
    Schema::raw(json!({"type": "object", "additionalProperties": true}))
}

/// Any of several shapes.
#[must_use]
pub fn any_of(alternatives: impl IntoIterator<Item = Schema>) -> Schema {
    let mut schema = Schema::raw(json!({"anyOf": []}));
    for alternative in alternatives {
        schema.components.extend(alternative.components);
        if let Some(list) = schema.value["anyOf"].as_array_mut() {
            list.push(alternative.value);
        }
    }
    schema
}

/// A list of any length.
#[must_use]
pub fn array(item: Schema) -> Schema {
    Schema { value: json!({"type": "array", "items": item.value}), components: item.components }
}

/// A list of at most so many.
#[must_use]
pub fn array_max(item: Schema, max: usize) -> Schema {
    array(item).with("maxItems", max)
}

/// A text.
#[must_use]
pub fn text() -> Schema {
    Schema::raw(json!({"type": "string"}))
}

/// A text of at most so many characters.
#[must_use]
pub fn text_max(max: usize) -> Schema {
    text().with("maxLength", max)
}

/// A text of at most so many characters that is not blank.
#[must_use]
pub fn words(max: usize) -> Schema {
    text_max(max).with("minLength", 1).with("pattern", r"\S")
}

/// One line of at most so many characters: no control characters.
#[must_use]
pub fn line(max: usize) -> Schema {
    text_max(max).with("pattern", r"^[^\u0000-\u001f\u007f-\u009f]*$")
}

/// One line that is not blank.
#[must_use]
pub fn name(max: usize) -> Schema {
    text_max(max).with("minLength", 1).with(
        "pattern",
        r"^[^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*$",
    )
}

/// A postal address of at most so many characters: line breaks, but no other control characters.
#[must_use]
pub fn postal_address(max: usize) -> Schema {
    text_max(max).with("pattern", r"^[^\u0000-\u0009\u000b\u000c\u000e-\u001f\u007f-\u009f]*$")
}

/// One of a closed set of words.
#[must_use]
pub fn one_of<'a>(words: impl IntoIterator<Item = &'a str>) -> Schema {
    Schema::raw(json!({"type": "string", "enum": words.into_iter().collect::<Vec<_>>()}))
}

/// An id in canonical form.
#[must_use]
pub fn id() -> Schema {
    text().with("format", "uuid")
}

/// An address.
#[must_use]
pub fn email() -> Schema {
    text_max(schemas::address::ADDRESS_MAX_BYTES).with("format", "email")
}

/// A time: RFC 3339 with a zone.
#[must_use]
pub fn time() -> Schema {
    text().with("format", "date-time")
}

/// A day: `YYYY-MM-DD`.
#[must_use]
pub fn date() -> Schema {
    text().with("format", "date")
}

/// An https or http address.
#[must_use]
pub fn uri() -> Schema {
    text().with("format", "uri")
}

/// An integer from `min` to `max`.
#[must_use]
pub fn integer(min: i64, max: i64) -> Schema {
    Schema::raw(json!({"type": "integer", "minimum": min, "maximum": max}))
}

/// How many: an integer from 0.
#[must_use]
pub fn count() -> Schema {
    Schema::raw(json!({"type": "integer", "minimum": 0}))
}

/// A number, not only whole ones.
#[must_use]
pub fn number() -> Schema {
    Schema::raw(json!({"type": "number"}))
}

/// True or false.
#[must_use]
pub fn boolean() -> Schema {
    Schema::raw(json!({"type": "boolean"}))
}

/// One value only.
#[must_use]
pub fn only(value: impl Into<Value>) -> Schema {
    let value = value.into();
    let kind = match &value {
        Value::Bool(_) => "boolean",
        Value::String(_) => "string",
        _ => return Schema::raw(json!({"const": value})),
    };
    Schema::raw(json!({"type": kind, "const": value}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_schema_is_carried_along_by_what_refers_to_it() {
        let inner = object([required("id", id())]).named("Inner");
        let outer = array(object([required("inner", inner.or_null())]));
        assert_eq!(outer.components().keys().collect::<Vec<_>>(), ["Inner"]);
        let reference = json!({"anyOf": [{"$ref": "#/components/schemas/Inner"}, {"type": "null"}]});
        assert_eq!(outer.value()["items"]["properties"]["inner"], reference);
    }

    #[test]
    fn fields_are_added_to_every_alternative() {
        let mut schema = any_of([object([required("a", text())]), object([optional("b", text())])]);
        schema.add_fields(&[required("tenant", text())]);
        for (place, wanted) in [(0, json!(["tenant", "a"])), (1, json!(["tenant"]))] {
            assert_eq!(schema.value()["anyOf"][place]["required"], wanted);
        }
    }

    #[test]
    fn a_nullable_choice_admits_null() {
        let schema = one_of(["a", "b"]).or_null();
        assert_eq!(*schema.value(), json!({"type": ["string", "null"], "enum": ["a", "b", null]}));
    }
}
